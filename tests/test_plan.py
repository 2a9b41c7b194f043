"""What a run takes: hand-computed bytes, the real thing on a CPU, searches, and the command."""

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from functools import partial

import pytest
from fake_hub import hub
from few_cases import few
from python_process import unslothrl
from test_fit import cpu, local_model

from unslothrl.commands.cli import main
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning import footprint, forecast
from unslothrl.planning import setting_search as search
from unslothrl.planning.fit import with_engines
from unslothrl.planning.forecast import forecast_of
from unslothrl.planning.place import place
from unslothrl.planning.placement import Placement, Resources
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Gpu, Machine
from unslothrl.tracking import origin
from unslothrl.weights import shapes
from unslothrl.weights.shapes import KNOWN, Shape

SEVEN = KNOWN["qwen2.5-7b"]
MAIN = Config(learner="grpo", engine="vllm", backend="unsloth", number_of_actors=0)


def cards(*sizes_gb: float) -> Machine:
    found = tuple(Gpu(f"card{i}", round(gb * 1024), round(gb * 1024), (8, 9))
                  for i, gb in enumerate(sizes_gb))  # fmt: skip
    packages = frozenset({"vllm", "unsloth", "ray"})
    return Machine(8, 64_000, 8_000, 100_000, found, packages, online=True)


def placed(config: Config, machine: Machine, *given: str) -> Placement:
    """With the options of the engines that were not given."""
    resources = Resources.of_machine(config, machine)
    return place(with_engines(config, frozenset(given), SEVEN, resources), resources, shape=SEVEN)


def said(flags: list[str], capsys) -> str:
    assert main(["plan", *flags]) == 0
    return capsys.readouterr().out


def as_json(flags: list[str], capsys) -> dict:
    return json.loads(said([*flags, "--json"], capsys))


def saved_bytes(weights, forward) -> int:
    """Of the storages that autograd keeps for the backward pass beside those of the weights."""
    import torch

    own, saved = {tensor.untyped_storage().data_ptr() for tensor in weights}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize("gb", [8, 12, 16])
def test_a_plan_is_of_the_run_that_would_follow(gb, capsys):
    flags = ["--model", "Qwen/Qwen2.5-3B-Instruct", "--card", str(gb),
             "--backend", "peft", "--engine", "transformers"]  # fmt: skip
    found = as_json(flags, capsys)
    assert found["fits"] == (found["cards"][0]["needed_mb"] <= found["cards"][0]["usable_mb"])
    assert found["fits"] and any("max_num_seqs" in line for line in found["changed_to_fit"])
    for best in filter(None, found["settings"].values()):
        assert "--backend peft" in best["command"] and "--engine transformers" in best["command"]
    off = as_json([*flags, "--fit", "off"], capsys)
    assert not off["fits"] and not any("max_num_seqs" in line for line in off["changed_to_fit"])


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_weights_and_optimiser_are_as_large_as_they_are(kind, bases, make_backend):
    import bitsandbytes
    import torch

    backend = make_backend(bases[kind])
    shape = shapes.shape_of(str(bases[kind]))
    found = 0
    for module in backend.model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            state = module.weight.quant_state
            found += module.weight.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
    # a scale of scales is of 256 blocks of 64, or of fewer in a matrix as small as here
    assert found == pytest.approx(shape.linear_weights() * shapes.NF4, rel=0.01)
    trained = backend.parameters().values()
    assert sum(p.numel() for p in trained) == shape.lora_weights(8)
    optimizer = backend.optimizer(list(trained), 1e-3, 0.0)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = [t for state in optimizer.state.values() for t in state.values() if t.numel() > 1]
    kept += [t for parameter in trained for t in (parameter, parameter.grad)]
    assert sum(t.numel() * 4 for t in kept) == shape.lora_weights(8) * footprint.TRAINED["cpu"]


@pytest.mark.real
def test_rows_on_a_cpu_are_planned_as_long_as_they_are_filled():
    from unslothrl.backends import packing

    shape = shapes.shape_of("embedded")

    def activations(tokens, **others):
        config = Config(
            learner="grpo", train_batch_size=1, max_prompt_tokens=2, max_new_tokens=tokens - 2,
            **others,
        )  # fmt: skip
        return footprint.of_update(config, shape, None)[0]["activations"]

    assert activations(66) == activations(packing.FILL) < activations(packing.FILL + 1)
    assert activations(66, context_parallel=2) == activations(packing.FILL) / 2


@pytest.mark.real
@pytest.mark.parametrize(
    ("hidden", "inner", "heads", "kv_heads"),
    few([(128, 384, 4, 2), (128, 768, 4, 1), (256, 384, 8, 8)]),
)
def test_a_layers_activations_are_what_autograd_keeps(hidden, inner, heads, kv_heads):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from unslothrl.records import LORA_TARGETS

    def kept(layers: int) -> int:
        config = LlamaConfig(
            vocab_size=64, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads,
        )  # fmt: skip
        lora = LoraConfig(r=8, target_modules=list(LORA_TARGETS))
        model = get_peft_model(LlamaForCausalLM(config).bfloat16(), lora)
        ids = torch.zeros(1, 64, dtype=torch.long)
        forward = partial(model.get_base_model().model, ids, use_cache=False)
        return saved_bytes(model.parameters(), forward)

    shape = Shape(2, hidden, inner, heads, kv_heads, hidden // heads, 64, tied=False)
    assert (kept(3) - kept(2)) / 64 == footprint.peft_layer_bytes(shape, rank=8)


def test_a_plan_by_hand():
    config = replace(MAIN, train_batch_size=2, max_num_seqs=16, learner_gpu_usage=0.6)
    (card,) = placed(config, cards(16), "learner_gpu_usage").cards
    needs = card.processes[0].needs
    assert needs.updating["weights"] * 2**20 == pytest.approx(SEVEN.engine_bytes())
    lora = SEVEN.lora_weights(32) * (4 + 4 + 2 + 8 / 256)
    assert needs.updating["adapter and optimiser"] * 2**20 == pytest.approx(lora)
    tokens = 2 * (350 + 1200)
    layer = 2 * (4 * 3584 + 2 * 3584 + 2 * 512 + 4 * 18_944) * tokens
    assert needs.updating["activations"] * 2**20 == pytest.approx(layer + 2 * 3584 * 18_944)
    assert needs.host["offloaded activations"] * 2**20 == 28 * tokens * 3584 * 2
    # the engine's 0.6 of the card holds weights, adapter, 4,096 tokens of an MLP (for 4.2 GB beside
    # the weights), 16 rows of logits and the KV cache
    assert needs.updating["engine's adapter"] * 2**20 == SEVEN.lora_weights(32) * 2
    drawing = 4096 * (2 * 18_944 + 4 * 3584) * 2 + 16 * 152_064 * 12
    assert needs.generating["activations"] * 2**20 == drawing
    names = ("weights", "engine's adapter", "activations", "KV cache")
    assert sum(needs.generating[name] for name in names) == pytest.approx(0.6 * 16 * 1024)
    assert "KV cache" not in needs.updating  # it sleeps
    phases = (sum(needs.generating.values()), sum(needs.updating.values()))
    assert card.needed_mb() == needs.peak_mb() == max(phases)


def test_learners_on_cards_of_their_own_have_room_for_the_sum_of_their_gradients():
    alone, other = (
        footprint.learner(replace(MAIN, number_of_learners=n), SEVEN, cards(24).gpus[0])
        for n in (1, 2)
    )
    gradients = SEVEN.lora_weights(MAIN.max_lora_rank) * 4 / 2**20
    assert other.updating_mb() - alone.updating_mb() == pytest.approx(gradients + footprint.NCCL_MB)
    assert other.generating_mb() - alone.generating_mb() == pytest.approx(footprint.NCCL_MB)


def test_processes_on_one_card_take_turns():
    config = replace(MAIN, number_of_actors=1, max_num_seqs=8, learner_chunk_size=0)
    (card,) = placed(config, cards(24)).cards
    learner, actor = card.processes
    assert set(actor.needs.updating) == {"CUDA context", "CUDA graphs"}  # it sleeps
    assert actor.needs.host["weights, asleep"] == actor.needs.generating["weights"]
    assert card.needed_mb() >= learner.needs.generating_mb() + actor.needs.generating_mb()
    first, second = placed(config, cards(24, 24)).cards
    assert [p.name for p in (*first.processes, *second.processes)] == ["learner-0", "actor-0"]
    assert second.processes[0].needs.updating == second.processes[0].needs.generating
    (offloaded,) = placed(replace(config, offload="model"), cards(24)).cards
    learner = offloaded.processes[0]
    assert set(learner.needs.generating) == {"CUDA context"}
    assert offloaded.needed_mb() < card.needed_mb()
    assert learner.needs.host["model, between updates"] * 2**20 == SEVEN.weight_bytes()
    assert offloaded.processes[1].share > card.processes[1].share


def test_more_of_anything_takes_more():
    def needed_mb(**more) -> float:
        return placed(replace(MAIN, max_num_seqs=4, **more), cards(80)).cards[0].needed_mb()

    larger = ({"max_new_tokens": 4000}, {"max_lora_rank": 64}, {"train_batch_size": 64})
    assert min(needed_mb(**each) for each in (*larger, {"learner": "ppo"})) > needed_mb()


@pytest.mark.parametrize("gb", [12, 24])
def test_searches_give_what_fits_and_no_more_would(gb):
    def fits(config: Config) -> bool:
        return place(config, Resources.of_machine(config, cards(gb)), shape=SEVEN).cards[0].fits

    found = search.largest(MAIN, fits, SEVEN.context)
    assert fits(found)
    longer = replace(found, max_new_tokens=found.max_new_tokens + 64)
    assert not fits(longer) or longer.context > SEVEN.context
    fast = search.fastest(MAIN, fits)
    assert fits(fast) and fast.max_new_tokens == MAIN.max_new_tokens
    twice = replace(fast, train_batch_size=2 * fast.train_batch_size)
    assert fast.train_batch_size == 64 or not fits(twice)


def test_the_command_says_what_fits_and_what_to_paste(capsys):
    flags = ["--model", "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "--card", "16"]
    text = said([*flags, "--learner", "grpo"], capsys)
    first, time, *_ = text.splitlines()
    assert first.startswith("fits: a GPU of 16 GB needs at least 10.56 GB of 15.20 GB, 4.64 GB to ")
    steps = "250 steps on 7,473 rows of openai/gsm8k"
    assert re.match(rf"a step of 30 x 16 completions takes .* min, {steps}\S* .* h ", time)
    assert "--learner grpo --model unsloth/Qwen2.5-7B-Instruct-bnb-4bit --max_new_tokens" in text
    assert said(flags, capsys) == text  # the learner of the recommendation is grpo
    assert " train --learner ppo " in said([*flags, "--learner", "ppo"], capsys)
    assert "download: 5.17 GB" in text  # 6,525,288,448 weights in NF4, 1,090,328,064 in 16 bits
    found = as_json([*flags[:3], "6", "--learner", "grpo"], capsys)
    assert found["fits"] is False and found["settings"]["largest"] is None
    parts = found["cards"][0]["processes"][0]["updating"]
    assert set(parts) == {"weights", "adapter and optimiser", "CUDA context", "CUDA graphs",
                          "engine's adapter", "activations", "logits chunk"}  # fmt: skip


def test_the_rows_of_a_local_file_are_counted(tmp_path, capsys):
    rows = [{"problem": f"{i} + 1", "answer": str(i + 1)} for i in range(50)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = ["--model", "unsloth/Qwen2.5-3B-bnb-4bit", "--card", "12", "--batch_size", "6"]
    flags += ["--dataset", str(tmp_path / "own.jsonl"), "--episodes", "2"]
    found = as_json(flags, capsys)
    assert (found["problems"], found["steps"]) == (45, 16)  # 5 of 50 held out; twice 8 steps
    assert (found["evaluations"], found["evaluated"]) == (3, 5 * 8)  # at 0, 10 and 16
    found = as_json([*flags, "--eval_dataset", "GSM8K", "--max_steps", "3"], capsys)
    assert (found["problems"], found["steps"]) == (50, 3)
    assert (found["evaluations"], found["evaluated"]) == (2, 200 * 8)
    assert "2 evaluations of 1,600 completions each: " in said(
        [*flags, "--eval_dataset", "GSM8K", "--max_steps", "3"], capsys
    )


def test_a_plan_without_a_gpu_counts_steps(capsys):
    assert "30 steps; their time is estimated for GPUs only" in said(
        ["--model", "embedded"], capsys
    )


def test_evaluations_are_as_large_as_their_sets(tmp_path, capsys):
    (tmp_path / "few.jsonl").write_text("\n".join(['{"problem": "1 + 1", "answer": "2"}'] * 20))
    flags = ["--model", "unsloth/Qwen2.5-3B-bnb-4bit", "--card", "12", "--max_steps", "10"]
    gsm8k = [*flags, "--dataset", "openai/gsm8k"]
    assert as_json([*gsm8k, "--eval_problems", "0"], capsys)["evaluated"] == 1_319 * 8
    own = [*gsm8k, "--eval_dataset", str(tmp_path / "few.jsonl"), "--eval_dataset", "MATH-500"]
    assert as_json(own, capsys)["evaluated"] == (20 + 200) * 8
    assert as_json([*flags, "--dataset", "MATH-500"], capsys)["evaluated"] == 50 * 8
    (tmp_path / "test").mkdir()
    (tmp_path / "few.jsonl").rename(tmp_path / "test" / "few.jsonl")
    found = as_json([*flags, "--dataset", f"{tmp_path}@test"], capsys)  # not trained on twice
    assert (found["problems"], found["evaluated"]) == (18, 2 * 8)


@pytest.mark.parametrize("given", [["--card", "8"], []])
def test_what_does_not_fit_is_not_offered(given, capsys):
    large = ["--model", "unsloth/Qwen2.5-72B-Instruct-bnb-4bit", "--fit", "off", *given]
    assert as_json(large, capsys)["command"] is None
    assert as_json(["--model", "embedded", *given], capsys)["command"].count("--model embedded")


@pytest.mark.real
def test_a_model_of_the_hub_is_planned_by_its_config_alone(tmp_path):
    """Whose name says nothing: config.json is fetched once, and nothing else."""

    def plan(model: str) -> subprocess.CompletedProcess:
        variables = {"HF_ENDPOINT": server.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        words = ("plan", "--model", model, "--gpu", "12")
        return unslothrl(*words, env=os.environ | variables, timeout=100)

    weights = re.compile(r"^ +weights +.*$", re.M)
    config = {
        "model_type": "llama", "num_hidden_layers": 28, "hidden_size": 3072,
        "intermediate_size": 8192, "num_attention_heads": 24, "num_key_value_heads": 8,
        "vocab_size": 128_256, "tie_word_embeddings": True,
    }  # fmt: skip
    with hub() as server:
        server.repositories["some/tune"] = {"files": {"config.json": json.dumps(config).encode()}}
        server.repositories["some/moe"] = {
            "files": {"config.json": json.dumps(config | {"num_experts": 8}).encode()}
        }
        done, again = plan("some/tune"), plan("some/tune")
        assert done.returncode == 0 and "fits" in done.stdout, done.stderr
        for other in (again, plan("meta-llama/Llama-3.2-3B-Instruct")):
            assert weights.findall(other.stdout) == weights.findall(done.stdout) != []
        assert server.asked == ["/some/tune/resolve/main/config.json"]
        assert not any("Llama-3.2-3B" in path for path in server.heads)
        mixture, unknown = plan("some/moe"), plan("some/unknown")
    assert mixture.returncode == 2 and "a mixture of experts" in mixture.stderr
    assert (
        unknown.returncode == 2
        and "Repository Not Found" in unknown.stderr
        and "hf auth login" in unknown.stderr
    )


def test_commands_can_be_pasted(capsys):
    flags = ["--model", "Qwen/Qwen3-4B", "--card", "24", "--system_prompt", "Think; don't guess",
             "--reward", "boxed", "--reward", "format=0.5", "--max_lora_rank", "16",
             "--train_batch_size", "4"]  # fmt: skip
    best = as_json(flags, capsys)["settings"]["fastest"]
    program, _, flags = best["command"].partition(" train ")
    assert program == origin.program()
    words = shlex.split(flags)
    assert words[words.index("--system_prompt") + 1] == "Think; don't guess"
    assert words.count("--reward") == 2 and words[-2:] == ["--fit", "off"]
    resolved = resolve(config_of(words), cards(24)).config
    assert resolved.train_batch_size == best["train_batch_size"] == 4
    assert resolved.max_lora_rank == 16


def config_of(words: list[str]) -> dict:
    """Flags with one value each; of a repeated one the last."""
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2])}  # noqa: B905


def test_a_disk_that_is_too_small_is_said():
    config, machine = replace(MAIN, max_num_seqs=8), cards(24)
    assert forecast_of(config, SEVEN, machine).fits
    assert not forecast_of(config, SEVEN, replace(machine, disk_mb=1000)).fits


def test_every_version_in_flight_has_a_slot_in_the_plan(capsys):
    """By hand: rank 33 is rounded to 64 on the card, and stays 33 in the host's memory."""
    card, host = SEVEN.lora_weights(64) * 2 / 2**20, SEVEN.lora_weights(33) * 2 / 2**20
    for changes, versions, engine_mb in (
        ({}, 1, card),
        ({"max_staleness": 2}, 3, card),
        ({"max_staleness": 2, "partial_rollouts": True}, 1, card),
        ({"max_staleness": 2, "dtype": "float32"}, 3, 2 * card),
        ({"max_staleness": 2, "engine": "transformers"}, 3, 2 * host),
    ):
        config = replace(MAIN, number_of_actors=1, learner_chunk_size=0, max_num_seqs=8,
                         max_lora_rank=33, **changes)  # fmt: skip
        needs = placed(config, cards(24, 24)).actors[0].needs
        assert needs.generating["adapter"] == pytest.approx(versions * engine_mb)
        if "dtype" not in changes and "engine" not in changes:
            assert needs.host["policy versions"] == pytest.approx(versions * host)
    flags = ["--model", "Qwen/Qwen3-4B", "--max_staleness", "2", "--engine", "vllm"]
    assert "under 3 policy versions, vllm" in said(flags, capsys)


def test_a_run_that_does_not_fit_would_with_shorter_completions(capsys):
    flags = ["--model", "Qwen/Qwen2.5-7B-Instruct", "--card", "16", "--fit", "off",
             "--engine", "transformers", "--backend", "peft", "--max_num_seqs", "8"]  # fmt: skip
    long = [*flags, "--max_new_tokens", "8000"]
    found = as_json(long, capsys)
    tokens = found["would_fit_with"]["max_new_tokens"]
    assert not found["fits"] and 256 <= tokens < 8000
    for length, fits in ((tokens, True), (tokens + 64, False)):
        assert as_json([*flags, "--max_new_tokens", str(length)], capsys)["fits"] is fits
    assert f"would fit with --max_new_tokens {tokens}\n" in said(long, capsys)
    small = [*flags, "--max_new_tokens", "300", "--card", "6"]
    assert as_json(small, capsys)["would_fit_with"] is None


def test_a_plan_warns_of_answers_that_earn_nothing(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "3 + 4?", "answer": "Three and four together make 7."}\n')
    flags = ["--model", "qwen2.5-3b", "--gpu", "12", "--dataset", str(path)]
    assert "1 of 1 answers are sentences" in said(flags, capsys)
    path.write_text('{"problem": "3 + 4?", "answer": "Together they make: #### 7"}\n')
    assert "sentences" not in said(flags, capsys)


def test_a_step_by_hand():
    config = replace(MAIN, batch_size=8, num_candidates=16, topk=16, max_num_seqs=64)
    parameters, tokens = 7_615_616_512, 1200
    moving = (SEVEN.engine_bytes() + 64 * 1550 * 57_344 / 2) / 0.5e12
    computing = 2 * parameters * 64 / 0.5e14
    updating = 8 * parameters * 128 * 1550 / 0.5e14
    ways = [((bandwidth, 0.5e14), 0.01, 1.0, 0) for bandwidth in (0.5e12, 0.5e11)]
    found, slow = (forecast.step_s(config, SEVEN, way) for way in ways)
    assert found == pytest.approx(2 * tokens * (max(moving, computing) + 0.01) + updating)
    assert slow == pytest.approx(2 * tokens * (10 * moving + 0.01) + updating)
    every = replace(config, topk=4, select="all")
    assert forecast.step_s(every, SEVEN, ways[0]) == found


def test_a_run_says_that_an_unknown_model_was_not_fitted():
    notes = resolve({"model": "google/gemma-2-2b-it"}, cards(8)).notes
    assert "model google/gemma-2-2b-it: its size is not known, so nothing was fitted" in notes
    assert "learner_gpu_usage 0.35 -> 0.7: the learner generates everything" in notes


# test_real_episodes.py compares these plans with what real episodes take
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
    still, waiting = [((0.5e12, 0.5e14), 0.01, 1.0, turns) for turns in (0, 5)]
    single = replace(config, environment=None, max_episode_tokens=None, max_new_tokens=2000)
    again = 4 * (350 + 1000) * 2 * 7_615_616_512 * 64 / 0.5e14
    expected = forecast.step_s(single, SEVEN, still) + 2 * (again + 5)
    assert forecast.step_s(config, SEVEN, waiting) == pytest.approx(expected)
    (low, high), longer = (
        forecast.seconds_of(each, SEVEN, placed(config, cards(24)).cards)["step_seconds"]
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


@pytest.mark.parametrize("flags", [["24,24"], ["24,24,24,24"], ["24,24,24"]])
def test_commands_of_a_divided_plan_fit_as_they_stand(flags, capsys):
    """What `plan` prints to paste is what it has planned."""
    model = ["--model", "unsloth/Qwen2.5-32B-Instruct-bnb-4bit"]
    found = as_json([*model, "--gpu", *flags], capsys)
    for setting in found["settings"].values():
        words = setting["command"].split()
        again = as_json([*words[words.index("train") + 1 :], "--gpu", *flags], capsys)
        assert all(card["fits"] for card in again["cards"])
        assert again["changed_to_fit"] == [] or "backend" in again["changed_to_fit"][0]
    assert found["exchange"]["learner_shards"] > 1


def test_what_keeps_a_model_from_being_divided_is_said(capsys):
    model = ["--model", "unsloth/Qwen2.5-32B-Instruct-bnb-4bit", "--gpu", "24,24"]
    for flags, said_of_it in (
        (["--backend", "unsloth"], "it cannot be divided: learner_shards 2 is not possible with b"),
        (["--max_staleness", "1"], "it cannot be divided: max_staleness 1: on 2 GPUs"),
    ):
        assert said_of_it in said([*model, *flags], capsys)
    assert "divided among 2 GPUs it does not fit either" in said([*model[:-1], "12,12"], capsys)


def test_host_memory_of_gpus_that_are_elsewhere_is_no_verdict(capsys):
    text = said(["--model", "unsloth/Qwen2.5-72B-Instruct-bnb-4bit", "--gpu", "48,48"], capsys)
    assert text.startswith(("fits", "host memory: needs ")) and "DOES NOT FIT" not in text
