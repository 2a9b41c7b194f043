"""The first batch's proof: silent for every objective, and each planted fault stops the run."""

import dataclasses
from pathlib import Path

import families
import numpy as np
import pytest
import torch
from few_cases import few
from python_process import python
from test_backend import learner_of, samples

from unslothrl import embedded
from unslothrl.algorithms import losses
from unslothrl.backends import packing, peft
from unslothrl.errors import RunError
from unslothrl.learners.learner import Learner
from unslothrl.records import Batch, Proof, Update
from unslothrl.training import first_batch
from unslothrl.training.updates import split_batch
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

PROGRAM = Path(__file__).parents[1] / "train_distributed.py"
OBJECTIVES = ("grpo", "dapo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_pp", "pg", "ppo")


def proved(learner: Learner) -> Proof:
    """Of eight sequences, of which four have one prompt."""
    plain = list(samples())
    plain[1:4] = [dataclasses.replace(s, prompt_ids=plain[0].prompt_ids) for s in plain[1:4]]
    learner.passes.micro_batch, learner.passes.context = 4, 60
    known = [
        dataclasses.replace(s, **m, returns=np.linspace(0, 1, s.tokens, dtype=np.float32))
        for s, m in zip(plain, learner.measure(plain, reference=True), strict=True)
    ]
    known = [dataclasses.replace(s, logprobs=None) for s in known]
    whole = Batch(tuple(known), len(known), sum(s.tokens for s in known), seed=7)
    return learner.prove(whole, split_batch(whole, 2))


def learner(objective: str = "grpo", base: Path = embedded.BASE, **more) -> Learner:
    options = {"dtype": torch.float32, "rank": 4, "alpha": 8, "dropout": 0.0, "seed": 0, **more}
    return learner_of(peft.load(base, **options), base, objective=objective)


@pytest.mark.parametrize("objective", few(OBJECTIVES, among=("grpo", "ppo")))
def test_an_objective_has_one_gradient(objective):
    """And nothing changes: no weight, no gradient, no random state, not even with dropout."""
    trained = learner(objective, dropout=0.5)
    before = [each.detach().clone() for each in trained.parameters()]
    state = torch.get_rng_state()
    found = proved(trained)
    assert 0 < found.apart < 1e-5 and found.still == frozenset()
    assert torch.equal(torch.get_rng_state(), state)
    for each, kept in zip(trained.parameters(), before, strict=True):
        assert torch.equal(each, kept) and each.grad is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", families.TRAINED)
def test_no_family_is_stopped(tmp_path, family, dtype, seed, own_cache):
    model = families.built(families.TRAINED[family](), seed)
    base = base_model.prepare(str(families.saved(tmp_path / "base", model)))
    found = proved(learner(base=base, dtype=dtype))
    assert found.apart < found.limit / 4 and found.still == frozenset()


def mean_of_micro_batches(learner, monkeypatch):
    def mean(terms, lengths, over):
        return terms.mean()

    monkeypatch.setitem(losses.AGGREGATIONS, "sequence", mean)


def sequence_dropped(learner, monkeypatch):
    whole = learner.backend.micro_batches

    def fewer(*given):
        parts = whole(*given)
        return [part[:-1] or part for part in parts] if torch.is_grad_enabled() else parts

    monkeypatch.setattr(learner.backend, "micro_batches", fewer)


def shares_that_divide_by_their_own(learner, monkeypatch):
    whole = split_batch

    def split(batch, count):
        return [
            dataclasses.replace(part, sequences=len(part.samples)) for part in whole(batch, count)
        ]

    monkeypatch.setitem(globals(), "split_batch", split)


def positions_that_go_on(learner, monkeypatch):
    whole = packing.packed

    def packed(*given):
        pack = whole(*given)
        positions = torch.arange(pack.ids.shape[1])[None]
        return dataclasses.replace(pack, positions=positions)

    monkeypatch.setattr(packing, "packed", packed)


def packs_that_see_their_neighbours(learner, monkeypatch):
    def inputs(pack):
        whole = packing.Span(1, pack.ids.shape[1] - 1, True)
        return packing.pack_inputs(dataclasses.replace(pack, spans=(whole,)))

    learner.backend.pack_inputs = inputs


APART = {  # -> whether the packs are named
    mean_of_micro_batches: False,
    sequence_dropped: False,
    shares_that_divide_by_their_own: False,
    positions_that_go_on: True,
    packs_that_see_their_neighbours: True,
}


@pytest.mark.parametrize("fault", few(APART, 2))
def test_another_gradient_stops_the_run(monkeypatch, fault):
    trained = learner()
    fault(trained, monkeypatch)
    found = proved(trained)
    assert found.apart > 0.1
    what = "packed into one row" if APART[fault] else "in one micro-batch"
    with pytest.raises(RunError, match=f"the gradient of sequences {what} is not that of"):
        first_batch.verdict([found], 0, True)


def test_a_tensor_without_a_gradient_stops_the_run():
    trained = learner()
    frozen = next(n for n in trained.backend.parameters() if "lora_B" in n)
    trained.backend.parameters()[frozen].register_hook(torch.zeros_like)
    found = proved(trained)
    assert found.still == {frozen}
    with pytest.raises(RunError, match="1 trained tensors get no gradient, base_model"):
        first_batch.verdict([found], 0, True)


@pytest.mark.slow
def test_a_state_that_leaks_stops_the_run(tmp_path, monkeypatch, own_cache):
    model = families.built(families.TRAINED["Qwen3.5"]())
    base = base_model.prepare(str(families.saved(tmp_path / "base", model)))
    monkeypatch.setattr(packing, "can_pack", lambda model: True)
    found = proved(learner(base=base))
    assert found.is_apart and found.names_packs


MEAN = """
from dataclasses import replace
from unslothrl.algorithms.objectives import grpo

def mean(terms, lengths, over):
    return terms.mean()

OBJECTIVE = replace(grpo.OBJECTIVE, aggregation=mean)
"""


@pytest.mark.slow
def test_a_run_with_a_mean_of_means_ends_in_a_line(tmp_path):
    (tmp_path / "mean.py").write_text(MEAN)
    words = "--learner mean.py --cluster local --engine transformers --max_steps 2 --eval_every 0"
    train = [PROGRAM, *words.split(), "--model", "embedded", "--output_dir", tmp_path]
    with pytest.raises(AssertionError, match="first batch is not trained on as it should be"):
        python(*train, cwd=tmp_path)
    python(*train, "--no_check_first_batch", cwd=tmp_path)


def test_rounding_stops_no_objective_whose_bounds_are_narrow():
    """Rounding would decide whether GSPO's clip of 3e-4 acts, and is all of a gradient of 0."""
    trained = learner("gspo", dtype=torch.bfloat16)
    assert proved(trained).apart < 0.02
    nothing = [dataclasses.replace(s, advantages=0 * s.advantages) for s in samples()]
    whole = Batch(tuple(nothing), len(nothing), 44)
    assert first_batch.some_of(whole).samples == ()
    found = trained.prove(whole, split_batch(whole, 2))
    assert not found.is_judged and first_batch.verdict([found], 0, True) == {}


def test_one_sequence_names_a_tensor_without_a_gradient():
    trained = learner()
    frozen = next(n for n in trained.backend.parameters() if "lora_B" in n)
    trained.backend.parameters()[frozen].register_hook(torch.zeros_like)
    one = Batch(samples()[:1], 1, 9)
    found = trained.prove(one, split_batch(one, 2))
    assert found.still == {frozen} and found.is_judged


def proof_of(difference, sources, still=()) -> Proof:
    update = Update(difference=np.array(difference), sources=sources)
    return Proof(update, 1e-4, 1e-3, frozenset(still))


def test_gaps_by_hand():
    """A quarter counts with 32 tokens, of those that the newest version has drawn."""
    difference = [0.51] * 32 + [0.01] * 96 + [-0.03] * 32 + [0.01] * 96 + [9.0] * 128
    sources = [("actor-0", 3, 128), ("actor-0", 3, 128), ("actor-0", 2, 128)]
    found = proof_of(difference, sources)
    assert first_batch.by_quarter(found, 3) == pytest.approx([0.27, 0.01, 0.01, 0.01])
    assert first_batch.by_quarter(proof_of([9.0] * 31, [("actor-0", 3, 31)]), 3) == []
    with pytest.raises(RunError, match=r"0\.27, 0\.01, 0\.01, 0\.01 nats"):
        first_batch.verdict([found], 3, is_exact=True)
    row = first_batch.verdict([found], 3, is_exact=False)  # the top of the distribution is drawn
    assert row["first_batch"] == 3 and row["gap_1"] == pytest.approx(0.27)


def test_a_tensor_has_its_gradient_in_any_learner():
    """Where learners divide a model, each has those of its part."""
    sources = [("actor-0", 0, 1)]
    halves = [proof_of([0.0], sources, still) for still in (("a", "b"), ("c",))]
    assert first_batch.verdict(halves, 0, True)["still"] == 0
    with pytest.raises(RunError, match="1 trained tensors get no gradient, b among them"):
        first_batch.verdict([halves[0], proof_of([0.0], sources, ("b", "c"))], 0, True)


def test_a_quarter_of_a_batch_from_both_ends():
    def some(count: int) -> tuple[list[int], int]:
        each = dataclasses.replace(samples()[0], completion_ids=np.arange(3))
        parts = tuple(dataclasses.replace(each, row=row) for row in range(count))
        found = first_batch.some_of(Batch(parts, 99, 999))
        assert found.tokens == 3 * found.sequences == 3 * len(found.samples)
        return [sample.row for sample in found.samples]

    assert some(1) == [0] and some(3) == [0, 2] and some(12) == [0, 1, 11]
    assert some(100) == [0, 1, 2, 3, 96, 97, 98, 99]
