"""One contract, every engine: vLLM and transformers over the same 4-bit base."""

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import engine_contract as contract
import numpy as np
import pytest
import torch
from engine_contract import TOKEN, held_by, requests
from environment_files import tokenizer, written
from fakes import draw_groups
from few_cases import few
from real_episodes import ASK, MOST_GAP, Draws, dropping, gaps, of_several_turns, tasks
from transformers import PretrainedConfig

from unslothrl.actors.actor import Actor
from unslothrl.actors.episodes import Rules
from unslothrl.commands.chat import sampling_of
from unslothrl.config.options import Config
from unslothrl.engines.base import generate
from unslothrl.engines.transformers import (
    Chunk,
    TransformersEngine,
    draw,
    keep_likely,
    uniform_numbers,
)
from unslothrl.engines.vllm import VllmEngine
from unslothrl.engines.vllm_split import base_problem
from unslothrl.environments.host import Setup
from unslothrl.errors import AdapterDamaged
from unslothrl.planning import footprint
from unslothrl.records import Request, Sample, Sampling
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter
from unslothrl.weights.adapter_use import Use
from unslothrl.weights.shapes import shape_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def own(bases, make_backend):
    return make_backend(bases["biases"], trained=False, seed=3)


@pytest.fixture(params=few(["vllm", "transformers", "transformers with its own base"], 2))
def engine(request, bases, backend):
    if request.param == "vllm":
        engine = request.getfixturevalue("vllm_engine")
    else:
        has_own = request.param != "transformers"
        of = request.getfixturevalue("own") if has_own else backend
        engine = TransformersEngine(of, bases["biases"], max_num_seqs=16, has_own_base=has_own)
    engine.load(backend.publish(0))
    return engine


def gap(engine, backend, temperature: float) -> float:
    """The engine's log-probabilities from the learner's, on average; of each prompt twice."""
    once = requests(sampling=Sampling(temperature, 1.0, 0, 24))
    asked = [replace(r, id=f"{r.id}/{n}", seed=r.seed + n) for r in once for n in (0, 1)]
    drawn = generate(engine, asked)
    batch = [Sample.of(r.prompt_ids, one) for r, one in zip(asked, drawn, strict=True)]
    with torch.no_grad():
        learner, _ = backend.token_logprobs(batch, temperature)
    return np.abs(learner.numpy() - np.concatenate([one.logprobs for one in drawn])).mean()


def test_logprobs_are_the_learners(engine, backend):
    assert gap(engine, backend, 1.0) < 0.01 and gap(engine, backend, 1.3) < 0.01


def test_completions_end_with_the_sampled_end_token_or_at_the_length(engine):
    drawn = generate(engine, requests(64, 2, Sampling(1.5, 1.0, 0, 90)))
    stops = set(engine.stop)
    assert {one.finish_reason for one in drawn} == {"stop", "length"}
    for one in drawn:
        assert len(one.token_ids) == len(one.logprobs) <= 90
        assert not stops & set(one.token_ids[:-1]) and max(one.logprobs) <= 0
        assert (one.token_ids[-1] in stops) == (one.finish_reason == "stop")
        assert len(one.token_ids) == 90 or one.finish_reason == "stop"


def test_top_k_and_top_p_are_in_the_logprobs(engine):
    drawn = generate(engine, requests(sampling=Sampling(1.0, 1.0, 2, 24)))
    shares = np.exp(np.concatenate([one.logprobs for one in drawn]))
    assert shares.mean() > 0.4  # two tokens share the whole probability
    drawn = generate(engine, requests(sampling=Sampling(1.0, 0.001, 0, 24)))
    assert np.concatenate([one.logprobs for one in drawn]) == pytest.approx(0.0, abs=1e-5)


@pytest.fixture(scope="module")
def published(bases, make_backend):
    """-> a function: a version's adapter, biased towards `TOKEN` or not."""
    plain, biased = (make_backend(bases["biases"], trained=False) for _ in range(2))
    optimizer = torch.optim.Adam(biased.parameters().values(), lr=1e-2)
    draw = random.Random(0)
    for _ in range(60):
        prompts = [tuple(draw.choices(range(3, 250), k=6)) for _ in range(16)]
        batch = [Sample(prompt, (TOKEN,) * 8, (), np.zeros(8), 0) for prompt in prompts]
        loss = -biased.token_logprobs(batch, 1.0)[0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    return lambda version, is_biased: (biased if is_biased else plain).publish(version)


@pytest.fixture
def load(engine, backend, published):
    """Into an engine that shares a learner's weights, as if the learner had trained."""
    shares = isinstance(engine, TransformersEngine) and not engine.has_own_base
    before = {name: p.detach().clone() for name, p in backend.parameters().items()}

    def load(version: int, is_biased: bool) -> None:
        adapter = published(version, is_biased)
        if shares:
            backend.restore_adapter(adapter)
        engine.load(adapter)

    yield load
    with torch.no_grad():
        for name, parameter in backend.parameters().items():
            parameter.copy_(before[name])


@pytest.mark.parametrize("check", contract.OF_REQUESTS)
def test_requests(check, engine):
    check(engine)


@pytest.mark.parametrize("check", contract.OF_VERSIONS)
def test_versions(check, engine, load):
    check(engine, load)
    if isinstance(engine, TransformersEngine):
        assert list(engine.backend.model.peft_config) == ["default"]
    else:
        assert engine.llm.llm_engine.list_loras() == {engine.newest}
        assert [*engine.files.folder.iterdir()] == [Path(engine.loaded[engine.newest].lora_path)]


def test_vllm_changes_nothing_in_the_files_that_others_read_too(vllm_engine, backend):
    """It multiplies B by alpha / r in place."""
    adapter = backend.publish(0)
    config = json.loads(adapter.config)
    assert config["lora_alpha"] != config["r"]
    vllm_engine.load(adapter)
    generate(vllm_engine, requests(1))
    folder = Path(vllm_engine.loaded[vllm_engine.newest].lora_path)
    assert (folder / WEIGHTS_FILE).read_bytes() == adapter.weights
    assert (folder / CONFIG_FILE).read_text() == adapter.config


def test_a_damaged_adapter_is_refused(engine, backend):
    contract.check_a_damaged_adapter_is_refused(engine, backend.publish(3))


def test_engines_and_learner_hold_the_same_base(vllm_engine, backend, bases, make_backend):
    assert vllm_engine.fingerprint() == backend.fingerprint() != ""
    assert make_backend(bases["plain"]).fingerprint() != backend.fingerprint()
    (problem,) = vllm_engine.llm.apply_model(partial(base_problem, bases["biases"], False))
    assert (
        problem is None
    )  # scales included: vLLM itself rounds the mean around which they are kept


def test_keep_likely_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    for top_p, top_k, kept in ((0.7, 0, [1, 1, 0, 0]), (1.0, 3, [1, 1, 1, 0])):  # 0.5 < 0.7 <= 0.8
        assert keep_likely(logits, Sampling(1.0, top_p, top_k, 1)).isfinite().tolist() == [kept]


def test_sampling_follows_the_distribution():
    probabilities = torch.tensor([0.0, 0.5, 0.3, 0.2])
    rows = 4000
    sampling = Sampling(1.0, 1.0, 0, 1)
    uniform = uniform_numbers([Request(str(i), (1,), i, sampling) for i in range(rows)])
    tokens, logprobs = draw(probabilities.log().repeat(rows, 1), uniform, sampling)
    shares = torch.bincount(tokens, minlength=4) / rows
    assert shares[0] == 0  # a token of probability 0 never comes out
    assert shares.tolist() == pytest.approx([0, 0.5, 0.3, 0.2], abs=0.03)
    assert torch.allclose(logprobs.exp(), probabilities[tokens])


def test_the_models_own_generation_settings_play_no_part(bases, make_backend):
    """Qwen2.5 ships a repetition penalty and a top-k; `generate` would take them from the model."""
    backend = make_backend(bases["biases"])
    settings = backend.model.get_base_model().generation_config
    settings.repetition_penalty, settings.top_k, settings.no_repeat_ngram_size = 1.5, 3, 2
    engine = TransformersEngine(backend, bases["biases"], max_num_seqs=16, has_own_base=False)
    assert gap(engine, backend, 1.0) < 0.01


def test_logits_are_float32_before_the_temperature(vllm_engine, backend, monkeypatch):
    """With an adapter; rounded to bfloat16 they would cost 0.01 a token on a card."""
    vllm_engine.load(backend.publish(800))
    seen = []
    (processor,) = vllm_engine.llm.apply_model(lambda model: model.logits_processor)
    compute = processor._get_logits
    with monkeypatch.context() as patch:
        patch.setattr(processor, "_get_logits", lambda *a: seen.append(compute(*a)) or seen[-1])
        generate(vllm_engine, requests(4))
    assert {logits.dtype for logits in seen} == {torch.float32}
    rounded = [(logits - logits.bfloat16().float()).abs().max().item() for logits in seen]
    assert min(rounded) > 1e-3


def test_the_engines_weights_and_adapters_are_as_large_as_planned(vllm_engine, backend, bases):
    """Its scales are float32, its slots for adapters in 16 bits at the rank that it rounds to, and
    the host's copies of them at their own."""

    def measure(model) -> tuple[int, int]:
        base, lora = {}, {}
        for parameter in model.parameters():
            base[parameter.data_ptr()] = parameter.numel() * parameter.element_size()
            for state in getattr(parameter, "bnb_quant_state", {}).values():
                assert not state.nested
                base[state.absmax.data_ptr()] = state.absmax.numel() * state.absmax.element_size()
        for module in model.modules():
            stacked = (getattr(module, "lora_a_stacked", ()), getattr(module, "lora_b_stacked", ()))
            for tensor in (one for both in stacked for one in both):
                lora[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return sum(base.values()), sum(lora.values())

    shape = shape_of(str(bases["biases"]))
    ((weights, adapter),) = vllm_engine.llm.apply_model(measure)
    assert weights == pytest.approx(shape.engine_bytes(), rel=0.01)
    planned = footprint.versions_mb(Config(max_staleness=2, max_lora_rank=8), shape, 8)
    assert adapter == pytest.approx(planned * footprint.MB, rel=0.01)
    assert adapter == pytest.approx(3 * shape.lora_weights(8) * 2, rel=0.01)
    for version in (850, 851, 852):
        vllm_engine.load(backend.publish(version))
        vllm_engine.add(replace(requests(1)[0], id=str(version)))
        vllm_engine.step()
    copies = host_copies(vllm_engine)
    assert len(copies) == held_by(vllm_engine) == 3
    sizes = {id: sum(copy.nbytes for copy in of_one) for id, of_one in copies.items()}
    assert sizes == dict.fromkeys(vllm_engine.loaded, shape.lora_weights(8) * 2)
    vllm_engine.abort(["850", "851", "852"])
    assert host_copies(vllm_engine).keys() == vllm_engine.loaded.keys() == {vllm_engine.newest}


@pytest.mark.parametrize("damage", few(["flipped", "gone"]))
def test_files_that_are_damaged_before_vllm_reads_them_are_written_again(
    vllm_engine, backend, monkeypatch, damage
):
    hold, folders = vllm_engine.files.hold, []

    def damaged(adapter: Adapter) -> Path:
        folders.append(hold(adapter))
        if len(folders) == 1:
            weights = folders[0] / WEIGHTS_FILE
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.unlink() if damage == "gone" else weights.write_bytes(content)
        return folders[-1]

    monkeypatch.setattr(vllm_engine.files, "hold", damaged)
    vllm_engine.load(backend.publish(860))  # which compares it with what was published
    assert vllm_engine.version == 860
    assert [folder.exists() for folder in folders] == [False, True]
    assert vllm_engine.loaded.keys() == {vllm_engine.newest} == host_copies(vllm_engine).keys()


def host_copies(engine: VllmEngine) -> dict[int, list[torch.Tensor]]:
    """The tensors of each adapter that vLLM keeps besides the slots, by its id."""

    def of(lora) -> list[torch.Tensor]:
        both = [pair for layer in lora.loras.values() for pair in (layer.lora_a, layer.lora_b)]
        lists = [one if isinstance(one, list) else [one] for one in both]
        return [tensor for one in lists for tensor in one if tensor is not None]

    (adapters,) = engine.llm.apply_model(lambda model: model.lora_manager.list_adapters())
    return {id: of(lora) for id, lora in adapters.items()}


def test_an_engine_that_takes_turns_sleeps_but_while_it_generates(
    vllm_engine, backend, bases, monkeypatch
):
    """A version that comes while it sleeps is loaded when it wakes. (vLLM sleeps on a GPU alone:
    here only when it is told to.)"""
    events = []
    inner = vllm_engine.llm.llm_engine
    add_lora = inner.add_lora
    monkeypatch.setattr(vllm_engine.llm, "sleep", lambda level: events.append("sleep"))
    monkeypatch.setattr(vllm_engine.llm, "wake_up", lambda: events.append("wake"))
    monkeypatch.setattr(vllm_engine, "takes_turns", True)
    monkeypatch.setattr(inner, "add_lora", lambda r: events.append(r.lora_name[:7]) or add_lora(r))
    vllm_engine.is_asleep = False
    engine = VllmEngine(vllm_engine.llm, bases["biases"], takes_turns=True)
    assert engine.is_asleep and events == ["sleep"]  # as soon as it is built
    engine.close()
    events.clear()
    assert vllm_engine.fingerprint() == backend.fingerprint() and events == ["sleep"]
    vllm_engine.load(backend.publish(901))
    generate(vllm_engine, requests())
    vllm_engine.load(backend.publish(902))
    vllm_engine.load(backend.publish(903))
    with pytest.raises(AdapterDamaged, match="arrived damaged"):
        vllm_engine.load(replace(backend.publish(904), weights=b"x"))
    drawn = generate(vllm_engine, requests())
    vllm_engine.wake()
    assert events == ["sleep", "wake", "v000901", "sleep", "wake", "v000903", "sleep", "wake"]
    assert {one.policy_version for one in drawn} == {903}


def test_rows_of_a_chunk_finish_by_themselves():
    """Two rows over a vocabulary of three, of which token 2 ends a sequence."""
    goes_on, ends = [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]
    script = [[goes_on, goes_on], [goes_on, ends], [goes_on, goes_on], [ends, goes_on]]
    fed, places = [], []

    class Model:
        config = PretrainedConfig(num_hidden_layers=1)

        def __call__(self, input_ids, past_key_values, position_ids, **_):
            fed.append(input_ids.tolist())
            places.append(position_ids.tolist())
            logits = torch.tensor(script[len(fed) - 1])[:, None]
            return SimpleNamespace(logits=logits, past_key_values=past_key_values)

    sampling = Sampling(1.0, 1.0, 1, 4)
    both = [Request("a", (1, 1, 1), 1, sampling), Request("b", (1,), 2, sampling)]
    chunk = Chunk(both, [2], torch.device("cpu"))
    model = Model()
    assert [chunk.step(model) for _ in range(4)] == [[], [1], [], [0]]
    assert fed == [[[1, 1, 1], [0, 0, 1]], [[0], [0]], [[0], [2]], [[0], [0]]]
    assert places == [[[0, 1, 2], [0, 0, 0]], [[3], [1]], [[4], [2]], [[5], [3]]]
    assert (chunk.drawn(0)[0], chunk.finish_reason(0)) == ((0, 0, 0, 2), "stop")
    assert (chunk.drawn(1)[0], chunk.finish_reason(1)) == ((0, 2), "stop")


def test_temperature_0_takes_the_likeliest_token():
    use = Use(base="embedded", system_prompt="")
    greedy = sampling_of(replace(use, temperature=0.0), 8)
    assert keep_likely(torch.tensor([[1.0, 3.0, 2.0]]), greedy).isfinite().tolist() == [[0, 1, 0]]
    assert sampling_of(use, 8) == Sampling(use.temperature, use.top_p, 0, 8)


@pytest.mark.slow
@pytest.mark.parametrize("rewrites", [False, True])
def test_the_learner_agrees_with_vllm_on_every_turn_of_an_episode(
    rewrites, vllm_engine, backend, tmp_path, monkeypatch
):
    monkeypatch.setattr(vllm_engine, "close", lambda: None)  # by the actor: others need it
    vllm_engine.load(backend.publish(0))
    tokens = dropping(tokenizer()) if rewrites else tokenizer()
    setup = Setup(written(tmp_path, ASK), "Ask")
    actor = Actor("actor-0", vllm_engine, tokens, None, setup, Rules(context=256))
    try:
        draws = Draws(actor)
        groups = draw_groups(actor, tasks(8), 8, Sampling(1.0, 1.0, 0, 64, 200), (0,))
    finally:
        actor.close()
    samples = draws.check(groups)
    several = of_several_turns(groups)
    assert len(several) >= 4
    assert {bool(one.transcript.earlier) for one in several} == {rewrites}
    with torch.no_grad():
        logprobs, _ = backend.token_logprobs(samples, 1.0)
    assert gaps([logprobs.numpy()], samples).mean() < MOST_GAP
