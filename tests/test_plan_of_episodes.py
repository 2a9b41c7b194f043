"""The plan of a run whose episodes have several turns, by hand; test_real_episodes.py compares it
with what real ones take."""

from dataclasses import replace

import pytest
from test_fit import cpu, local_model
from test_plan import MAIN, SEVEN, as_json, cards, placed, said

from unslothrl.errors import UserError
from unslothrl.planning import footprint, forecast
from unslothrl.planning import setting_search as search
from unslothrl.runs.resolve import resolve

EPISODES = replace(MAIN, environment="calculator", max_new_tokens=300, max_episode_tokens=2000)


def test_the_memory_of_episodes_is_that_of_completions_as_long():
    """Observations have activations and a KV cache as sampled tokens have."""
    (card,), (alike,) = (
        placed(config, cards(24)).cards for config in (EPISODES, replace(MAIN, max_new_tokens=2000))
    )
    needs, others = card.processes[0].needs, alike.processes[0].needs
    assert EPISODES.context == 2350
    assert (needs.generating, needs.updating) == (others.generating, others.updating)
    assert needs.host == {**others.host, "environments": 20 + 5 * 256.0}
    few = replace(EPISODES, batch_size=4, num_candidates=8, tools=("python",))
    assert footprint.episodes(few) == {"environments": 180 + 25 * 32.0}
    without_budget = replace(EPISODES, max_episode_tokens=None)
    assert without_budget.context == 350 + 300  # of all turns together, as it is played


def test_a_step_of_episodes_by_hand():
    """64 at once in 2 rounds; 4 later turns read prompt and half of the episode again, and the
    environment is waited for 5 times."""
    config = replace(EPISODES, batch_size=8, num_candidates=16, topk=16, max_num_seqs=64)
    options = {"speed": (0.5e12, 0.5e14), "engine_s": 0.01, "share": 1.0}
    found = forecast.step_s(config, SEVEN, **options, turns=5)
    single = replace(config, environment=None, max_episode_tokens=None, max_new_tokens=2000)
    alone = forecast.step_s(single, SEVEN, **options)
    again = 4 * (350 + 1000) * 2 * 7_615_616_512 * 64 / 0.5e14
    assert found == pytest.approx(alone + 2 * (again + 5))
    (low, high), longer = (
        forecast.seconds_of(each, SEVEN, placed(config, cards(24)))["step_seconds"]
        for each in (config, replace(config, max_turns=20))
    )
    assert longer[0] == low and longer[1] > high
    assert forecast.turns_of(config) == 10 and forecast.turns_of(MAIN) == 0


def test_what_does_not_fit_has_shorter_episodes():
    """A turn's length is lowered by no search: it bounds nothing."""
    fits_1500 = lambda config: float(config.context - 350 - 1500)  # noqa: E731, MB too many
    lowered = search.lower(replace(EPISODES, max_num_seqs=1, train_batch_size=1), set(), fits_1500)
    assert (lowered.max_episode_tokens, lowered.max_new_tokens) == (1500, 300)
    unset = replace(EPISODES, max_episode_tokens=None, max_new_tokens=1900)
    found = search.lower(unset, set(), fits_1500)
    assert (found.max_episode_tokens, found.max_new_tokens) == (1500, 1900)
    for given in ({"max_episode_tokens"}, {"max_episode_tokens", "max_new_tokens"}):
        assert search.lower(EPISODES, given, fits_1500).context == 2350
    assert search.lower(unset, {"max_new_tokens"}, fits_1500).context == 2250
    largest = search.largest(EPISODES, lambda config: config.context <= 4000, 32_768)
    assert (largest.max_episode_tokens, largest.max_new_tokens) == (3648, 300)


def test_a_plan_that_does_not_fit_says_how_long_an_episode_may_be(capsys):
    flags = ["--environment", "calculator", "--max_turns", "5", "--max_new_tokens", "300",
             "--model", "Qwen/Qwen2.5-7B-Instruct", "--card", "16", "--max_episode_tokens",
             "30000", "--train_batch_size", "8"]  # fmt: skip
    text = said(flags, capsys)
    assert "DOES NOT FIT" in text and "or lower --max_episode_tokens" in text
    tokens = as_json(flags, capsys)["would_fit_with"]["max_episode_tokens"]
    assert f"would fit with --max_episode_tokens {tokens}\n" in text
    fitting = [str(tokens) if flag == "30000" else flag for flag in flags]
    assert "DOES NOT FIT" not in said(fitting, capsys)


def test_an_episode_fits_into_the_models_context(tmp_path):
    model = {"model": local_model(tmp_path, 1024), "environment": "calculator"}
    config = resolve(model, cpu()).config
    assert (config.max_episode_tokens, config.context) == (674, 1024)
    fix = r"= 1350 is .*\(1024 tokens\): set --max_episode_tokens 674 or --max_prompt_tokens 24$"
    with pytest.raises(UserError, match=fix):
        resolve({**model, "max_episode_tokens": "1000"}, cpu())
