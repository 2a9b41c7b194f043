"""Draws the completions of evaluation sets as a run draws its own, without a learner, and says what
they tell of a policy: its figures, their intervals, and comparisons.

A majority is of the answer that most completions of a problem give (Wang et al. 2022,
self-consistency). Answers are the same where their texts are; those to mathematical rewards also
where mathematics says so, in processes that are killed where that takes too long.
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unslothrl import cluster
from unslothrl.algorithms.estimates import best_of, estimate, paired
from unslothrl.cluster.handles import Checks
from unslothrl.config.options import Config
from unslothrl.data import formats
from unslothrl.records import Group, Task
from unslothrl.rewards.processes import ProcessPool, RewardCall
from unslothrl.rewards.reward import IN_PROCESS, IN_SANDBOX, Reward
from unslothrl.rewards.scorer import FailureReport
from unslothrl.system.machine import Machine
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.group_source import Evaluation
from unslothrl.training.metrics import mean
from unslothrl.training.rollouts import RolloutStream
from unslothrl.weights.adapter import Adapter
from unslothrl.weights.published import Published

SAME = "answercheck:same"
PROCESSES = 2
DEADLINE_S = 2.0  # for two answers, else they differ


def draw(
    config: Config,
    base: Path,
    sets: Mapping[str, list[Task]],
    policies: Mapping[str, Adapter | None],
    level: str | None,
    view: Terminal,
) -> dict[str, dict[str, list[Group]]]:
    """What each policy, an adapter over the base or (None) the base alone, draws of each set by the
    actors of a run of `config`, without a learner. UserError, RunError."""
    stand_ins = config.number_of_learners if config.learner_evaluates else 0  # for them
    shapes = [Published(each).shape() for each in policies.values() if each is not None]
    alone = replace(
        config,
        number_of_learners=0,
        number_of_actors=config.number_of_actors + stand_ins,
        max_staleness=0,
        engine=config.generating_engine,
    )
    started = cluster.start(alone, base, Machine.detect(), view.stage)
    with contextlib.closing(started) as processes:
        Checks(level, shape=shapes[0] if shapes else None).check_all(processes)
        stream = RolloutStream(
            processes, config.learner_chunk_size, note=view.note, stand_ins=stand_ins
        )
        evaluation = Evaluation(config, sets, stream, FailureReport(view.note), view)
        drawn = {}
        for name, adapter in policies.items():
            view.stage(f"generating the answers of the {name}")
            if adapter is not None:
                stream.publish(adapter, adapter.version)
            drawn[name] = evaluation.draw(name)
        view.stage("stopping")
        return drawn


# Figures

Read = Sequence[str | None]
"""The answers of a problem's completions; None: it gives none."""


def values_of(groups: Sequence[Group], reward: Reward | None) -> dict[str, list[float]]:
    """A figure's name -> its value for each problem, from 0 to 1: pass@k for powers of two up to
    the candidates n, and for n itself (the mean of the best of k where scores are not 0 or 1), and
    what else is known of its completions. `reward`: the run's first; None: a custom one, which does
    not say what it takes for an answer."""
    candidates = len(groups[0].completions)
    counts = [*(2**i for i in range(candidates.bit_length()) if 2**i < candidates), candidates]
    values = {f"pass@{k}": [best_of(group.scores, k) for group in groups] for k in counts}
    if reward is not None and reward.runs != IN_SANDBOX:
        read = [[reward.answer(c.text) for c in group.completions] for group in groups]
        if candidates > 2:
            values[f"majority of {candidates}"] = [
                0.0 if first is None else group.scores[first]
                for first, group in zip(
                    winners(read, reward.runs == IN_PROCESS), groups, strict=True
                )
            ]
        values["has an answer"] = [mean(a is not None for a in each) for each in read]
    values["cut off"] = [
        mean(c.finish_reason == "length" for c in group.completions) for group in groups
    ]
    return values


def compared(values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Of the values of each policy on the same problems: their estimates, and the difference of the
    last from the first where there are two."""
    difference = paired(values[0], values[-1]) if len(values) > 1 else None
    return {"estimates": [estimate(each) for each in values], "difference": difference}


def winners(read: Sequence[Read], is_maths: bool) -> list[int | None]:
    """Of each problem the first completion with the answer that most give; None: none has one."""
    texts = [[None if text is None else formats.normalise(text) for text in each] for each in read]
    same = same_answers(texts) if is_maths else set()
    return [winner(each, same) for each in texts]


def winner(texts: Read, same: set[tuple[str, str]]) -> int | None:
    """`same`: pairs of texts that are one answer, in the order in which they come first."""
    kinds: dict[str, list[int]] = {}  # by the first text of each
    for i, text in enumerate(texts):
        if text is not None:
            kind = next((k for k in kinds if k == text or (k, text) in same), text)
            kinds.setdefault(kind, []).append(i)
    return max(kinds.values(), key=len)[0] if kinds else None  # the first of several


def same_answers(texts: Sequence[Read]) -> set[tuple[str, str]]:
    """The pairs of different texts of a problem that are mathematically the same."""
    different = [dict.fromkeys(text for text in each if text is not None) for each in texts]
    pairs = {pair: None for each in different for pair in itertools.combinations(each, 2)}
    if not pairs:
        return set()
    with contextlib.closing(ProcessPool(PROCESSES, DEADLINE_S)) as pool:
        results = pool.call([RewardCall(SAME, pair) for pair in pairs])
    return {pair for pair, result in zip(pairs, results, strict=True) if result.value is True}
