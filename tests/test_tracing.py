"""The single tokens that a report shows: what is asked of the learners, and what comes of it."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import completion, group, samples_of
from few_cases import few

from unslothrl.records import Batch, Sample, Update
from unslothrl.training import metrics
from unslothrl.training.metrics import Pieces, Trace, is_traced


def selected(groups, chosen) -> list[Sample]:
    samples = [(g, i, of) for g, each in enumerate(groups) for i, of in enumerate(samples_of(each))]
    return [
        replace(sample, row=row)
        for row, (g, i, of_candidate) in enumerate(samples)
        if i in chosen[g]
        for sample in of_candidate
    ]


def words(ids) -> list[str]:
    return [f"<{id}>" for id in ids]


def test_the_gap_of_every_token_of_what_was_trained_on():
    groups = [group("a", [1.0, 0.0], lengths=[2, 3]), group("b", [1.0], lengths=[1])]
    chosen = selected(groups, [[1], [0]])
    trace = Trace([*groups, group("c", [0.0], lengths=[2])], chosen)
    asked = trace.asked(chosen)  # rows of the rollouts: a0, a1, b0, c0
    assert [(s.row, s.is_traced) for s in asked] == [(1, True), (2, True)]
    trace.saw([Update(traced={1: np.array([-0.5, -0.75, -1.0], np.float32)}), Update(traced={})])
    found = trace.tokens(words)
    assert found[1]["pieces"] == ["<10>", "<11>", "<12>"]
    assert found[1]["logprobs"] == [-0.5] * 3 and found[1]["gaps"] == [0.0, -0.25, -0.5]
    assert [found[row]["gaps"] for row in (0, 2, 3)] == [None] * 3
    assert found[3]["logprobs"] == [-0.5, -0.5]
    asked = trace.asked(chosen)
    assert [s.is_traced for s in asked] == [False, True]  # what is known is not asked for again


def test_what_was_measured_is_not_asked_for():
    groups = [group("a", [1.0], lengths=[2])]
    sample = replace(
        selected(groups, [[0]])[0],
        logprobs=np.array([-1.0, -0.5], np.float32),
        advantages=np.array([0.5, 1.5], np.float32),
    )
    trace = Trace(groups, [sample])
    assert trace.asked([sample])[0] is sample
    (tokens,) = trace.tokens(words).values()
    assert tokens["gaps"] == [-0.5, 0.0] and tokens["advantages"] == [0.5, 1.5]


def test_observations_have_neither_log_probability_nor_gap():
    made = replace(completion(3), sampled=(True, False, True), logprobs=(-1.0, 0.0, -2.0))
    one = replace(group("a", [1.0]), completions=(made,))
    trace = Trace([one], selected([one], [[0]]))
    trace.saw([Update(traced={0: np.array([-1.5, -2.0], np.float32)})])
    (tokens,) = trace.tokens(words).values()
    assert tokens["logprobs"] == [-1.0, None, -2.0] and tokens["gaps"] == [-0.5, None, 0.0]


@pytest.mark.real
def test_a_trace_is_bounded():
    groups = [group(str(i), [1.0] * 16, lengths=[5000] * 16) for i in range(64)]
    trace = Trace(groups, selected(groups, [range(16)] * 64))
    assert len(trace.completions) == 96
    found = trace.tokens(words)
    assert sum(len(each["pieces"]) for each in found.values()) <= metrics.MOST_TOKENS
    assert all(len(each["pieces"]) + each["left_out"] == 5000 for each in found.values())


@pytest.mark.parametrize("total", [1, 30, 200, 2000, 12_345])
def test_the_steps_that_are_traced(total):
    traced = [step for step in range(1, total + 1) if is_traced(step, total)]
    assert traced[0] == 1 and len(traced) <= metrics.MOST_TRACED + 1
    assert total > 200 or len(traced) == total


def test_a_character_of_several_tokens_is_the_last_ones():
    letters = SimpleNamespace(
        decode=lambda ids, clean_up_tokenization_spaces: bytes(ids).decode("utf-8", "replace"),
        convert_ids_to_tokens=str,
    )
    pieces = Pieces(lambda: letters)
    text = "aé漢😀b"
    assert pieces(text.encode()) == ["a", "", "é", "", "", "漢", "", "", "", "😀", "b"]
    assert "".join(pieces("漢".encode()[:2])) == "\ufffd"
    assert "".join(pieces(b"\xff\xff\xffabc")).endswith("abc")
    assert pieces(()) == []


def test_the_pieces_of_a_tokenizer_are_its_text(tokenizer):
    pieces = Pieces(lambda: tokenizer)
    pieces([5])
    text = "17 + 25 = 42, né 漢"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(pieces(ids)) == len(ids) and "".join(pieces(ids)) == text


@pytest.mark.parametrize("micro_batch", few([1, 3]))
def test_a_learner_hands_over_what_it_computed_and_computes_the_same(
    bases, make_backend, micro_batch
):
    import torch
    from test_backend import samples  # of several lengths

    from unslothrl.algorithms import objectives
    from unslothrl.config.options import Config
    from unslothrl.learners.passes import Passes

    known = samples()
    tokens = sum(sample.tokens for sample in known)
    backend = make_backend(bases["plain"])
    config = Config(temperature=1.0, max_prompt_tokens=0, max_new_tokens=64)
    config = replace(config, train_batch_size=micro_batch)
    passes = Passes(backend, objectives.load("grpo"), config, lambda done, count: None)
    gradients, found = [], []
    for traced in ({}, {0: 10, len(known) - 1: 11}):
        for parameter in backend.parameters().values():
            parameter.grad = None
        asked = tuple(
            replace(s, row=traced.get(i, 0), is_traced=i in traced) for i, s in enumerate(known)
        )
        found.append(passes.forward_backward(Batch(asked, len(known), tokens)))
        gradients.append([p.grad.clone() for p in backend.parameters().values()])
    measured = passes.measure(known, reference=False)
    assert found[0].traced == {} and found[1].traced.keys() == {10, 11}
    assert len(found[1].traced[10]) == known[0].tokens
    assert np.allclose(found[1].traced[10], measured[0]["logprobs"], atol=1e-5)
    assert np.allclose(found[1].traced[11], measured[-1]["logprobs"], atol=1e-5)
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert found[0].loss == found[1].loss and math.isfinite(found[1].loss)
    assert np.array_equal(*(each.difference for each in found))
