"""Learners that divide the work of one, in processes of their own: its gradient."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import SMALL, STD, make_base
from few_cases import few, uncovered
from peft import LoraConfig, get_peft_model
from test_backend import LENGTHS, sample_of, samples
from test_exchange import meet
from test_learner import batch
from test_shards import (
    GRPO,
    LRS,
    OBJECTIVES,
    PPO,
    happens_in,
    joined,
    judged,
    judged_alone,
    learner_on,
    run_out_of_memory,
)
from transformers import AutoModelForCausalLM

from unslothrl.backends import lora, packing, peft
from unslothrl.errors import UserError
from unslothrl.learners.exchange import UNDER_WAY
from unslothrl.training import first_batch
from unslothrl.training.updates import split_batch
from unslothrl.weights import base_model
from unslothrl.weights.adapter import write_adapter

pytestmark = pytest.mark.real

LARGEST, RELATIVE = 1e-6, 5e-6  # of a gradient's difference; of a tensor's difference, by norms
IN_BFLOAT16 = 0.05  # of the latter, where every sum is rounded to 8 bits


def of_length(tokens: int):
    """A sample of so many tokens in all."""
    draw = np.random.default_rng(0).integers(3, 250, tokens - 2)
    return dataclasses.replace(sample_of(tokens - 2), completion_ids=tuple(map(int, draw)))


def known(learner, is_shared: bool, length: int | None = None) -> list:
    """Samples, some with one prompt where that `is_shared`, and what the learner says of them."""
    plain = list(samples()) if length is None else [of_length(length)]
    if is_shared:
        plain[1:4] = [dataclasses.replace(s, prompt_ids=plain[0].prompt_ids) for s in plain[1:4]]
    return [
        dataclasses.replace(
            s,
            **measured,
            sampler_logprobs=measured["logprobs"] + np.float32(0.01),
            returns=np.linspace(0, 1, s.tokens, dtype=np.float32),
        )
        for s, measured in zip(plain, learner.measure(plain, reference=True), strict=True)
    ]


def gradients(learner, part) -> dict[str, np.ndarray]:
    """By name, summed over all learners where there are several."""
    update = learner.forward_backward(part)
    parameters = learner.parameters()
    if learner.exchange is not None:
        learner.exchange.sum_gradients(parameters)
    names = [name for each in learner.trained().values() for name in each]
    found = {n: p.grad.numpy() for n, p in zip(names, parameters, strict=True)}
    return {**found, "loss": np.array(update.loss), "difference": update.difference}


def together(rank, world_size, address, stores, base, split, settings):
    """-> what is measured and the gradient, as one of several learners."""
    packing.FILL = 1  # else these short rows are all in the first learner's part
    learner = joined(rank, world_size, address, stores, base, split, settings)
    whole = known(learner, settings.get("shared", True), settings.get("length"))
    each = learner.config.learners_per_part
    parts = np.array_split(np.arange(len(whole)), world_size // each)
    part = batch(whole[i] for i in parts[rank // each])
    found = gradients(learner, part)
    learner.close()
    return [each.logprobs for each in whole], found


CONTEXT, SHARDS = "context_parallel", "learner_shards"
TENSORS, STAGES = "learner_tensor_parallel", "pipeline_stages"
CASES = {
    "context": (2, {CONTEXT: 2}, GRPO),
    "tensors": (2, {TENSORS: 2}, GRPO),
    "stages": (2, {STAGES: 2}, GRPO),
    "tensors, ppo, recomputed": (2, {TENSORS: 2}, {**PPO, "recompute": True}),
    "stages, ppo, recomputed": (2, {STAGES: 2}, {**PPO, "recompute": True}),
    "stages, padded, two groups": (4, {STAGES: 2}, {**GRPO, "packs": False}),
}


@pytest.mark.parametrize("case", few(CASES))
def test_several_get_the_gradient_of_one(case, bases):
    check_gradient(*CASES[case], bases["biases"])


def adapter_of(base, targets: list[str], folder):
    """An adapter of some of the linear layers, by their names."""
    plain = peft.load_base(AutoModelForCausalLM, base, torch.float32, device="cpu")
    shape = LoraConfig(r=8, target_modules=targets, init_lora_weights=False)
    return write_adapter(lora.pack_adapter(get_peft_model(plain, shape), 0, "base"), folder)


def test_matrices_without_a_lora_are_split_too(bases, tmp_path):
    start = adapter_of(bases["biases"], ["q_proj", "v_proj"], tmp_path)
    check_gradient(2, {TENSORS: 2}, {**GRPO, "start": start}, bases["biases"])


@pytest.mark.slow
@pytest.mark.parametrize("way", [CONTEXT, TENSORS, STAGES])
def test_a_reward_model_of_some_layers_judges(way, bases, tmp_path):
    folder = adapter_of(bases["plain"], ["q_proj", "v_proj"], tmp_path)
    expected = judged_alone(learner_on(bases["plain"], 0, {}, GRPO), folder)
    found = meet(judged, 2, bases["plain"], folder, way)
    assert found[-1] == pytest.approx(expected, abs=1e-5)


def under_way(rank, world_size, address, stores, base):
    """-> how many messages of an update a learner has sent, and at most at a time."""
    learner = joined(rank, world_size, address, stores, base, {STAGES: world_size}, PPO)
    part, send, found = batch(known(learner, False) * 4), learner.exchange.send, []

    def counted(values, step):
        send(values, step)
        found.append(len(learner.exchange.under_way))

    learner.exchange.send = counted
    learner.forward_backward(part)
    learner.close()
    return len(found), max(found)


def test_a_stage_keeps_no_more_of_many_micro_batches_than_of_few(bases):
    for sent, at_once in meet(under_way, 2, bases["plain"]):
        assert sent > 2 * UNDER_WAY >= 2 * at_once


RANKS = {"2": (2, 2), "3": (3, 3), "4": (4, 4), "2 x 2": (4, 2)}  # learners, those of a row
FACTORS = {
    "ranks": list(RANKS),
    "objective": list(OBJECTIVES),
    "base": ["whole", "shards"],
    "prompts": ["own", "shared"],
    "recompute": [False, True],
    "dtype": ["float32", "bfloat16"],
}
OF_CONTEXT = [
    ("2", "grpo", "shards", "own", True, "bfloat16"),
    ("2", "dapo", "whole", "shared", True, "bfloat16"),
    ("2", "ppo", "shards", "own", False, "float32"),
    ("3", "grpo", "whole", "shared", True, "float32"),
    ("3", "dapo", "shards", "own", False, "bfloat16"),
    ("3", "ppo", "shards", "own", True, "float32"),
    ("4", "grpo", "whole", "own", True, "float32"),  # heads of keys are repeated
    ("4", "dapo", "shards", "shared", False, "bfloat16"),
    ("4", "ppo", "whole", "shared", False, "float32"),
    ("2 x 2", "grpo", "shards", "shared", False, "float32"),
    ("2 x 2", "dapo", "whole", "own", False, "float32"),
    ("2 x 2", "ppo", "shards", "own", True, "bfloat16"),
]


def test_every_pair_of_values_is_in_a_case():
    assert not uncovered(OF_CONTEXT, FACTORS)


@pytest.fixture(scope="module")
def base_of_threes(tmp_path_factory):
    """Whose heads can be dealt to three."""
    folder = tmp_path_factory.mktemp("threes")
    heads = {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3}
    return base_model.quantise(make_base("biases", folder, STD, **{**SMALL, **heads}))


@pytest.mark.slow
@pytest.mark.parametrize(tuple(FACTORS), OF_CONTEXT)
def test_a_row_that_is_split_has_the_gradient_of_a_whole_one(
    ranks, objective, base, prompts, recompute, dtype, bases, base_of_threes
):
    world_size, count = RANKS[ranks]
    settings = {**OBJECTIVES[objective], "recompute": recompute, "dtype": dtype}
    split = {CONTEXT: count}
    if base == "shards":
        split[SHARDS] = count // 2 if count == 4 else count
    settings["shared"] = prompts == "shared"
    check_gradient(world_size, split, settings, base_of_threes if count == 3 else bases["biases"])


def check_gradient(world_size: int, split: dict[str, int], settings: dict, base) -> None:
    is_exact = settings.get("dtype") != "bfloat16"
    learner = learner_on(base, 0, {}, settings)
    whole = known(learner, settings.get("shared", True), settings.get("length"))
    expected = gradients(learner, batch(whole))
    found = meet(together, world_size, base, split, settings)
    logprobs, _ = found[-1]
    for one, other in zip(logprobs, whole, strict=True):
        assert np.abs(one - other.logprobs).max() <= (2e-6 if is_exact else 0.1)
    for _, gradient in found:
        for name in expected.keys() - {"loss", "difference"}:
            difference = gradient[name] - expected[name]
            relative = np.linalg.norm(difference) / np.linalg.norm(expected[name])
            assert relative <= (RELATIVE if is_exact else IN_BFLOAT16), name
            assert not is_exact or np.abs(difference).max() <= LARGEST, name
    if world_size == 2 and is_exact and "length" not in settings:
        assert float(found[-1][1]["loss"]) == pytest.approx(float(expected["loss"]), abs=1e-6)
        assert len(found[-1][1]["difference"]) == sum(n for _, n in LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_a_row_of_16384_tokens(count, bases):
    settings = {"objective": "grpo", "recompute": True, "shared": False, "length": 16_384}
    check_gradient(count, {CONTEXT: count}, settings, bases["biases"])


def test_rows_that_are_padded_cannot_be_split(bases):
    with pytest.raises(UserError, match="plain attention"):
        learner_on(bases["plain"], 0, {CONTEXT: 2}, {**GRPO, "packs": False})


def proved(rank, world_size, address, stores, base, split):
    """What a learner says of the first batch, of rows that all of them have a part of."""
    learner = joined(rank, world_size, address, stores, base, split, GRPO)
    learner.passes.micro_batch, learner.passes.context = 8, 200
    plain = [
        dataclasses.replace(
            of_length(n), advantages=np.full(n - 2, (-1) ** n * n / 100, np.float32)
        )
        for n in range(101, 131, 5)
    ]
    whole = dataclasses.replace(batch(plain), sequences=6, tokens=sum(s.tokens for s in plain))
    found = learner.prove(whole, split_batch(whole, 2))
    learner.close()
    return found


@pytest.mark.parametrize("way", few([CONTEXT, SHARDS, TENSORS, STAGES]))
def test_a_first_batch_that_is_divided_proves_itself(way, bases):
    found = meet(proved, 2, bases["plain"], {way: 2})
    assert max(each.apart for each in found) < 1e-5
    assert first_batch.verdict(found, 0, is_exact=False)["still"] == 0


def run_out(rank, world_size, address, stores, base, fails_at):
    """Rank 1 runs out of memory at an exchange. -> the checksum and note of an update."""
    learner = joined(rank, world_size, address, stores, base, {CONTEXT: 2}, GRPO)
    learner.passes.micro_batch = 4
    if rank == 1:
        happens_in(learner.backend.split.context, "exchanged", fails_at, run_out_of_memory)
    done = learner.update(batch(samples()), LRS, deadline_s=60.0)
    return done.checksum, done.note


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", [2, 7])
def test_memory_that_runs_out_in_one_is_agreed_on(fails_at, bases):
    found = meet(run_out, 2, bases["plain"], fails_at)
    assert found[0][0] == found[1][0]
    assert all("memory ran out" in note for _, note in found)
