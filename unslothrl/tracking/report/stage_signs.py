"""Signs in a run of SFT, DPO or a reward model; see `signs`."""

from collections.abc import Mapping, Sequence
from typing import Any

from unslothrl.tracking import methods
from unslothrl.tracking.metrics import Points, Row, eval_sets, is_number, mean, series, short
from unslothrl.tracking.report.signs import LEAST, NOTE, Rule, Sign, ends

Rows = Sequence[Row]
Options = Mapping[str, Any]
CHANCE, NEAR_CHANCE = 0.5, 0.05  # of pairs, and what may be luck
FELL = 0.03  # of a share


def not_finite(rows: Rows, options: Options) -> Sign | None:
    """A loss or gradient norm is no number."""
    names = ("train/loss", "train/grad_norm")
    steps = [r["step"] for r in rows if any(n in r and not is_number(r[n]) for n in names)]
    if not steps:
        return None
    count = f"{len(steps)} {'step' if len(steps) == 1 else 'steps'}"
    return Sign(
        "The loss was not finite",
        f"Loss or gradient norm was no number in {count}, the first of them step {steps[0]}.",
        "An adapter that was saved afterwards is of no use: begin again from an earlier one with "
        "a lower --lr or --max_grad_norm.",
    )


def eval_loss_rises(rows: Rows, options: Options) -> Sign | None:
    """The held-out loss was lower before."""
    for name in eval_sets(rows):
        points = series(rows, f"eval/{name}/loss")
        if len(points) < 2:
            continue
        step, best = min(points, key=lambda point: point[1])
        (_, first), (_, last) = points[0], points[-1]
        if last - best > max(0.02 * abs(best), 0.1 * (first - best)):
            of_best = "the adapter it began with" if step == 0 else f"the adapter of step {step}"
            return Sign(
                "The held-out loss rises: stop earlier",
                f"On {name} it was {short(best)} after step {step}, and is {short(last)} now.",
                f"What is learnt since then does not carry over: use {of_best}, or train with "
                "fewer --episodes, a lower --lr or more rows.",
            )
    return None


def no_better_than_chance(rows: Rows, options: Options) -> Sign | None:
    """Held-out pairs are told apart by luck."""
    for name in eval_sets(rows):
        points = trained(series(rows, f"eval/{name}/accuracy"))
        steps = len(series(rows, "train/loss"))
        if not points or steps < 2 * LEAST:
            continue
        last = mean([value for _, value in points[-LEAST:]])
        if last > CHANCE + NEAR_CHANCE:
            continue
        if last < CHANCE - NEAR_CHANCE:
            return Sign(
                "The worse answers are preferred",
                f"On {name} the better answer is preferred in {last:.0%} of the pairs.",
                "Check that the columns are not exchanged: --chosen_column and --rejected_column. "
                "If they are right, train longer or with a higher --lr.",
            )
        return Sign(
            "Held-out pairs are told apart no better than by chance",
            f"On {name} the better answer is preferred in {last:.0%} of the pairs.",
            "It has learnt nothing that carries over. Train longer or with a higher --lr; if that "
            "does not help, read some pairs: the better answer must be recognisable.",
        )
    return None


def margin_without_accuracy(rows: Rows, options: Options) -> Sign | None:
    """The margin in training grows, and fewer held-out pairs are right."""
    margins = series(rows, "train/margin")
    if len(margins) < 2 * LEAST:
        return None
    first, last = ends(margins)
    for name in eval_sets(rows):
        points = trained(series(rows, f"eval/{name}/accuracy"))
        if len(points) < 2 or last <= first:
            continue
        step, best = max(points, key=lambda point: point[1])
        if best > CHANCE + NEAR_CHANCE and best - points[-1][1] >= FELL:
            return Sign(
                "The margin grows while held-out accuracy falls",
                f"In training it went from {short(first)} to {short(last)}; on {name} the better "
                f"answer was preferred in {best:.0%} of the pairs after step {step}, and is in "
                f"{points[-1][1]:.0%} now.",
                f"The training pairs are being memorised: use the adapter of step {step}, or train "
                "with fewer --episodes or a lower --lr.",
            )
    return None


def chosen_less_likely(rows: Rows, options: Options) -> Sign | None:
    """DPO has made the better answers less likely too."""
    points = series(rows, "train/reward_chosen")
    beta = options.get("beta")
    if len(points) < 2 * LEAST or not is_number(beta) or not beta:
        return None
    nats = ends(points)[1] / beta
    if nats > -5:
        return None
    return Sign(
        "The better answers became less likely, too",
        f"At the end their log-probability is {short(-nats)} nats below the reference's.",
        "DPO widens the distance between two answers by lowering both. Answers may get worse: "
        "compare some with `unslothrl ask`, lower --lr, raise --beta, or teach the better answers "
        "by `unslothrl sft` before.",
    )


def known_already(rows: Rows, options: Options) -> Sign | None:
    """Nearly every token was right before the first step."""
    if methods.command_of(options) != methods.SFT:
        return None
    for name in eval_sets(rows):
        points = series(rows, f"eval/{name}/token_accuracy")
        if points and points[0][0] == 0 and points[0][1] > 0.97:
            return Sign(
                "Nearly everything was known before",
                f"On {name} {points[0][1]:.1%} of the tokens were right before the first step.",
                "There is little to learn from these rows.",
                NOTE,
            )
    return None


def not_evaluated(rows: Rows, options: Options) -> Sign | None:
    """Nothing tells whether what is learnt carries over."""
    if eval_sets(rows) or len(series(rows, "train/loss")) < 2 * LEAST:
        return None
    return Sign(
        "Nothing was evaluated",
        "Only losses of training are known, which fall also where rows are memorised.",
        "Set --eval_every, and --eval_dataset where the data has no test split.",
        NOTE,
    )


def too_short(rows: Rows, options: Options) -> Sign | None:
    """Too few steps to judge."""
    count = len(series(rows, "train/loss"))
    if count >= 2 * LEAST:
        return None
    return Sign(
        "Too early to say",
        f"There {'is 1 step' if count == 1 else f'are {count} steps'}; most signs need "
        f"{2 * LEAST}.",
        "Losses of single steps scatter; the evaluations before and after tell more.",
        NOTE,
    )


RULES: tuple[Rule, ...] = (
    not_finite,
    eval_loss_rises,
    no_better_than_chance,
    margin_without_accuracy,
    chosen_less_likely,
    known_already,
    not_evaluated,
    too_short,
)


def trained(points: Points) -> Points:
    """Those after a step: before, the two answers of a pair are equal to DPO."""
    return [(step, value) for step, value in points if step]
