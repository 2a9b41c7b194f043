"""Objectives: losses by hand, gradients by finite differences, and what must never change."""

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from python_process import python
from test_algorithms import numbers

from unslothrl.algorithms import advantages, divergence, losses, objectives, selection
from unslothrl.algorithms.losses import Denominators, Tokens, policy_loss, value_loss
from unslothrl.algorithms.objective import FUNCTIONS, Objective
from unslothrl.config.options import OPTIONS, PARTS, Config
from unslothrl.config.parts import with_objective
from unslothrl.errors import RunError, UserError

LEARNERS = objectives.names()  # whatever is there: a new file is held to the same
LIMIT = 20
CORRECTIONS = ("none", *losses.BOUNDS)
SHIPPED = {name: objectives.load(name) for name in LEARNERS}


@dataclasses.dataclass
class Case:
    """Random completions: [sequences] of lengths, everything else a list a sequence."""

    lengths: list[int]
    rows: dict[str, list[list[float]]]

    def tokens(self, order=None, logprobs=None, **changes) -> Tokens:
        order = range(len(self.lengths)) if order is None else order
        values = {
            name: torch.tensor([v for i in order for v in rows[i]], dtype=torch.float64)
            for name, rows in self.rows.items()
        }
        if logprobs is not None:
            values["logprobs"] = logprobs
        return Tokens(lengths=[self.lengths[i] for i in order], **{**values, **changes})

    def over(self) -> Denominators:
        return Denominators(len(self.lengths), sum(self.lengths), LIMIT)


def make_case(seed: int, lengths: list[int], spread: float = 0.5) -> Case:
    draw = random.Random(seed)
    logprobs = [[draw.uniform(-3, -0.05) for _ in range(n)] for n in lengths]

    def near(sigma):
        return [[p + draw.gauss(0, sigma) for p in row] for row in logprobs]

    weights = [draw.choice([-1, 1]) * draw.uniform(0.1, 2) for _ in lengths]
    return Case(
        lengths,
        {
            "logprobs": logprobs,
            "old": near(spread),
            "sampler": near(0.4),
            "reference": near(0.3),
            "entropies": [[draw.uniform(0, 2) for _ in range(n)] for n in lengths],
            "advantages": [[a] * n for a, n in zip(weights, lengths, strict=True)],
        },
    )


cases = st.builds(
    make_case,
    st.integers(0, 10_000),
    st.lists(st.integers(0, 6), min_size=2, max_size=6).filter(any),
    st.sampled_from([0.0, 0.3, 0.8]),
)


@pytest.mark.parametrize(
    ("learner", "value", "gradient"),
    [
        # Sequences of 1 and 3 tokens with log-probabilities -1 | -1 -2 -3 and advantages 2 and -1;
        # old is the policy itself, so every ratio is 1.
        # pg: value -(2 - 1)/2 (the ratio's value is 1); gradient -(A/length)/N
        ("pg", -0.5, [-1, 1 / 6, 1 / 6, 1 / 6]),
        ("grpo", -0.5, [-1, 1 / 6, 1 / 6, 1 / 6]),
        # token: -(2 - 3)/4; gradient -A/4
        ("dapo", 0.25, [-0.5, 0.25, 0.25, 0.25]),
        # constant: -(2 - 3)/(2 * 20); gradient -A/40
        ("dr_grpo", 0.025, [-0.05, 0.025, 0.025, 0.025]),
        # the whole completion's ratio: -(2 - 1)/2; gradient -A/2, at every token
        ("rloo", -0.5, [-1, 0.5, 0.5, 0.5]),
        # the geometric mean's: its gradient is a third a token
        ("gspo", -0.5, [-1, 1 / 6, 1 / 6, 1 / 6]),
        # -w A log pi: -(2 * -1 + -1 * -6)/4 = -1; gradient -A/4
        ("cispo", -1.0, [-0.5, 0.25, 0.25, 0.25]),
        ("ppo", 0.25, [-0.5, 0.25, 0.25, 0.25]),
        # reinforce_pp: token average and 0.001 k2; the reference is d = 0.5 below everywhere:
        # value 0.25 + 0.001 * 0.125; gradient -A/4 + 0.001 * 0.5 / 4
        ("reinforce_pp", 0.250125, [-0.499875, 0.250125, 0.250125, 0.250125]),
    ],
)
def test_on_policy_losses_by_hand(learner, value, gradient):
    logprobs = numbers(-1, -1, -2, -3, gradient=True)
    here = logprobs.detach()
    entropies, advantages = numbers(0, 0, 0, 0), numbers(2, -1, -1, -1)
    tokens = Tokens([1, 3], logprobs, entropies, advantages, here, reference=here - 0.5)
    loss = policy_loss(SHIPPED[learner], tokens, Denominators(2, 4, LIMIT))
    loss.value.backward()
    assert loss.value.item() == pytest.approx(value)
    assert logprobs.grad.tolist() == pytest.approx(gradient)
    assert loss.clipped == loss.corrected == 0


def test_every_term_of_the_loss_by_hand():
    # One sequence of two tokens, ratios 1.5 (clipped at 1.2) and 1, advantage 1, sampler weights
    # 3 (truncated to 2) and 0.5; kl k1 with d = 0.2 and -0.4, weight 0.1; entropies 1 and 3,
    # weight 0.01: (2 * -1.2 + 0.02 - 0.01) + (0.5 * -1 - 0.04 - 0.03), over 2 tokens
    old = numbers(-1, -1)
    logprobs = old + torch.log(numbers(1.5, 1))
    objective = Objective(
        aggregation="token", kl="loss", kl_estimator="k1", kl_coefficient=0.1,
        entropy_coefficient=0.01,
    )  # fmt: skip
    sampler, reference = old - torch.log(numbers(3, 0.5)), logprobs - numbers(0.2, -0.4)
    tokens = Tokens([2], logprobs, numbers(1, 3), numbers(1, 1), sampler, old, reference)
    loss = policy_loss(objective, tokens, Denominators(1, 2, LIMIT))
    assert loss.value.item() == pytest.approx((-2.4 + 0.02 - 0.01 - 0.5 - 0.04 - 0.03) / 2)
    assert (loss.clipped, loss.corrected) == (1, 1)


def test_skip_threshold_leaves_out_whole_sequences():
    # mean ratios (9 + 1)/2 = 5 and 2; over 4 is the first: no term, no gradient, however large
    for far in (math.log(9), 2000.0):
        logprobs = numbers(far, 0, math.log(2), gradient=True)
        zeros = numbers(0, 0, 0)
        tokens = Tokens([2, 1], logprobs, zeros, zeros - 1, sampler=zeros, old=zeros)
        loss = policy_loss(Objective(skip_threshold=4.0), tokens, Denominators(2, 3, LIMIT))
        loss.value.backward()
        assert loss.value.item() == pytest.approx(1.0)  # -(2 * -1) / 2
        assert logprobs.grad.tolist() == pytest.approx([0, 0, 1])
        assert loss.clipped == 2


def test_kl_in_the_loss_without_a_reference_is_an_error():
    tokens = make_case(0, [2, 1]).tokens(reference=None)
    with pytest.raises(ValueError, match="reference"):
        policy_loss(Objective(kl="loss", kl_coefficient=1.0), tokens, Denominators(2, 3, LIMIT))


def test_the_value_loss_is_aggregated_like_the_policys():
    # errors 2 and 0 | 1: squares halved 2, 0, 0.5; token average 2.5/3, per sequence (1 + 0.5)/2
    arguments = ([2, 1], numbers(3, 1, 2), numbers(3, 1, 2), numbers(1, 1, 1))
    over = Denominators(2, 3, LIMIT)
    for objective, expected in (
        (SHIPPED["ppo"], 2.5 / 3),
        (Objective(aggregation="sequence"), 0.75),
    ):
        assert value_loss(objective, *arguments, over, clip=0.0).item() == pytest.approx(expected)


def frozen(objective: Objective, case: Case):
    """The loss as a function of the log-probabilities with every detached factor held where it is:
    the weight of cispo, the base of REINFORCE's ratio. The rest detaches nothing of them."""
    here = case.tokens().logprobs
    if objective.clip == "weight":
        ratio = losses.RATIOS[objective.ratio](here - case.tokens().old, case.lengths)
        clip = losses.Clip(objective.clip_low, objective.clip_high)

        def held(_, logprobs, weights, __):
            return losses.weight(ratio, logprobs, weights, clip)

        objective = dataclasses.replace(objective, clip=held)
    if objective.ratio == "one":
        objective = dataclasses.replace(
            objective, ratio=lambda log_ratio, _: 1 + log_ratio - (here - case.tokens().old)
        )
    return lambda logprobs: policy_loss(
        objective, case.tokens(logprobs=logprobs), case.over()
    ).value.item()


VARIANTS = {
    **SHIPPED,
    **{f"grpo {k} in the loss": Objective(kl="loss", kl_estimator=k, kl_coefficient=0.3)
       for k in divergence.ESTIMATORS},
    **{f"grpo {c}": Objective(correction=c) for c in CORRECTIONS},
    "grpo geometric": Objective(correction="geometric", correction_low=0.5, correction_high=2.0),
    "grpo dual clip": Objective(clip_dual=1.5),
    "grpo skip": Objective(skip_threshold=1.3),
    "no clip, trajectory": Objective(clip="none", ratio="trajectory", aggregation="constant"),
}  # fmt: skip


KNOWN = [  # a part that is a function may detach what `frozen` does not know of
    name
    for name, objective in VARIANTS.items()
    if not any(callable(getattr(objective, part)) for part in FUNCTIONS)
]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("seed", range(3))
def test_finite_differences_confirm_the_gradient(name, seed):
    objective, case = VARIANTS[name], make_case(seed, [3, 0, 1, 4])
    here, loss, step = case.tokens().logprobs, frozen(objective, case), 1e-6
    logprobs = here.clone().requires_grad_()
    policy_loss(objective, case.tokens(logprobs=logprobs), case.over()).value.backward()
    exact = logprobs.grad
    assert exact.abs().max() > 0
    for i in range(len(here)):
        up, down = here.clone(), here.clone()
        up[i] += step
        down[i] -= step
        assert exact[i].item() == pytest.approx((loss(up) - loss(down)) / (2 * step), abs=1e-7)


def test_the_entropy_bonus_has_a_gradient():
    # through a two-token softmax: dH/dz of (0.8, 0.2) is p1 (ln p2 - ln p1) p2 = -0.2218 for z1
    logits = torch.log(numbers(0.8, 0.2)).requires_grad_()
    entropy = torch.distributions.Categorical(logits=logits).entropy().reshape(1)
    tokens = Tokens([1], numbers(-1), entropy, numbers(0), numbers(-1))
    objective = Objective(entropy_coefficient=2.0)
    policy_loss(objective, tokens, Denominators(1, 1, LIMIT)).value.backward()
    expected = -2.0 * 0.8 * 0.2 * (math.log(0.2) - math.log(0.8))
    assert logits.grad.tolist() == pytest.approx([expected, -expected])


@pytest.mark.parametrize("name", VARIANTS)
@given(case=cases, seed=st.integers(0, 1000), cut=st.integers(1, 5))
def test_order_micro_batches_and_empty_completions_change_nothing(name, case, seed, cut):
    """Padding would be completions of no tokens: they only count as sequences."""
    logprobs = case.tokens().logprobs.requires_grad_()
    whole = policy_loss(VARIANTS[name], case.tokens(logprobs=logprobs), case.over())
    whole.value.backward()
    assert logprobs.grad.isfinite().all()
    assert 0 <= whole.clipped <= sum(case.lengths) and 0 <= whole.corrected <= sum(case.lengths)
    padded = Case([0, *case.lengths, 0], {k: [[], *rows, []] for k, rows in case.rows.items()})
    order = list(range(len(padded.lengths)))
    random.Random(seed).shuffle(order)
    cut = min(cut, len(order) - 1)
    parts = [
        policy_loss(VARIANTS[name], padded.tokens(part), case.over()).value.item()
        for part in (order[:cut], order[cut:])
    ]
    assert sum(parts) == pytest.approx(whole.value.item(), abs=1e-9, rel=1e-9)


@pytest.mark.parametrize("name", LEARNERS)
@given(case=cases)
def test_on_policy_nothing_is_clipped_or_corrected(name, case):
    """Where sampler and learner agree the ratio is exactly 1, so the advantages alone remain."""
    logprobs = case.tokens().logprobs
    loss = policy_loss(VARIANTS[name], case.tokens(old=None, sampler=logprobs), case.over())
    assert loss.clipped == loss.corrected == 0
    explicit = policy_loss(VARIANTS[name], case.tokens(old=logprobs, sampler=logprobs), case.over())
    assert explicit.value.item() == loss.value.item()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_batch_in_which_everything_is_masked_has_no_gradient(name):
    case = make_case(1, [2, 3])
    logprobs = case.tokens().logprobs.requires_grad_()
    tokens = case.tokens(logprobs=logprobs, advantages=numbers(0, 0, 0, 0, 0))
    loss = policy_loss(dataclasses.replace(SHIPPED[name], kl="none"), tokens, case.over())
    loss.value.backward()
    assert loss.value.item() == 0 and not logprobs.grad.any()


def test_the_flags_offer_what_the_files_have():
    offered = {
        "advantage": {*advantages.ADVANTAGES, "gae"},
        "ratio": set(losses.RATIOS),
        "clip": set(losses.CLIPS),
        "aggregation": set(losses.AGGREGATIONS),
        "correction": set(CORRECTIONS),
        "kl_estimator": set(divergence.ESTIMATORS),
        "select": set(selection.SELECTIONS),
        "lr_schedule": {"constant", "linear", "cosine"},
    }
    assert {name: set(OPTIONS[name].metadata["choices"]) for name in offered} == offered
    assert Objective.__dataclass_fields__.keys() == {*PARTS, "overlong"}


@pytest.mark.parametrize("name", LEARNERS)
def test_its_parts_are_of_known_kinds(name):
    """Whatever `resolve` accepts of a user's file: known names, numbers inside of their limits."""
    resolved = with_objective(Config(learner=name))
    for part in PARTS:
        value = getattr(SHIPPED[name], part)
        assert getattr(resolved, part) == (None if callable(value) else value)
        assert part in FUNCTIONS or not callable(value)


def test_a_function_gets_what_it_asks_for_by_name():
    seen = {}

    def ratio(log_ratio, lengths, *, advantages, old):
        seen["ratio"] = advantages, old
        return log_ratio.exp()

    def clip(ratio, logprobs, advantages, clip, entropies, **others):
        seen["clip"] = entropies, others
        return -ratio * advantages, advantages > 9

    case = make_case(0, [2, 1])
    tokens = case.tokens(old=None)
    objective = Objective(ratio=ratio, clip=clip, aggregation=lambda terms, *others: terms.sum())
    policy_loss(objective, tokens, case.over())
    advantages, old = seen["ratio"]
    assert advantages is tokens.advantages and old.equal(tokens.logprobs)  # also where not measured
    entropies, others = seen["clip"]
    assert entropies is tokens.entropies and others["lengths"] == [2, 1]
    by_position = {"logprobs", "advantages"}
    assert {*others, "entropies"} == Tokens.__dataclass_fields__.keys() - by_position


# Files of the user's own

IMPORT = "from unslothrl.algorithms.objective import Objective\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("1 +", "SyntaxError: invalid syntax (mine.py, line 2)"),
        ("x = 1", "no OBJECTIVE"),
        ("OBJECTIVE = 'grpo'", "no OBJECTIVE"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_is_no_objective_is_reported_in_a_line(text, message, tmp_path):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(f"import dataclasses\n{text}")
    with pytest.raises(UserError) as error:
        objectives.load(str(path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_value_that_no_part_can_have_is_shown(tmp_path):
    path = tmp_path / "mine.py"
    for part, message in {
        "kl=print": "kl must be one of none, loss, reward, got",
        "clip_low=10**5000": "clip_low must be at least 0 and at most 1",
        "clip_high=float('nan')": "clip_high must be at least 0, got nan: set clip_high = 0",
    }.items():
        path.write_text(f"{IMPORT}OBJECTIVE = Objective({part})")
        with pytest.raises(UserError, match=message):
            with_objective(Config(learner=str(path)))


BUILT_ON_ANOTHER = """
import dataclasses, torch
from unslothrl.algorithms import objectives
print("a file may print")
OBJECTIVE = dataclasses.replace(
    objectives.load({base!r}), clip_low=torch.tensor(0.25).item(), kl="loss", kl_coefficient=1.0
)
"""


@pytest.mark.real
def test_a_file_may_build_on_another(tmp_path):
    base, path = tmp_path / "base.py", tmp_path / "mine.py"
    base.write_text(
        f"{IMPORT}def half(log_ratio, lengths):\n    return log_ratio.exp() / 2\n"
        "def bad(terms, lengths, over):\n    return terms\n"
        "OBJECTIVE = Objective(ratio=half, aggregation=bad)"
    )
    path.write_text(BUILT_ON_ANOTHER.format(base=str(base)))
    objective = objectives.load(str(path))
    assert (objective.clip_low, objective.kl, objective.kl_coefficient) == (0.25, "loss", 1.0)
    assert objective.ratio.function.__name__ == "half"
    assert objective.ratio(numbers(0.0, math.log(3)), [2]).tolist() == pytest.approx([0.5, 1.5])
    with pytest.raises(RunError, match=rf"learner {base}, line 4, aggregation bad: it must return"):
        objective.aggregation(numbers(1.0), [1], None)


@pytest.mark.real
def test_resolve_does_not_load_torch(tmp_path):
    """For the learners that are there, and for a file that does not import it."""
    path = tmp_path / "mine.py"
    path.write_text(
        f"{IMPORT}def mine(ratio, logprobs, advantages, clip):\n"
        "    return -ratio * advantages, advantages > 1e9\n"
        "OBJECTIVE = Objective(clip=mine, clip_high=0.3)"
    )
    code = (
        "import sys\nfrom unslothrl.runs.resolve import resolve\n"
        f"config = resolve({{'learner': {str(path)!r}, 'model': 'embedded'}}).config\n"
        "resolve({'learner': 'ppo'})\n"
        "import unslothrl.training.trainer\n"
        "print(config.clip_high, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert python("-c", code, cwd=tmp_path).stdout == "0.3 []\n"
