"""pass@1 and best-of-n on the evaluation sets, by the same stream that training draws from."""

import itertools
import time
from collections.abc import Mapping

from unslothrl import rewards
from unslothrl.config import sampling
from unslothrl.config.options import Config
from unslothrl.records import Group, Task
from unslothrl.rewards.scorer import FailureReport
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.group_source import Judge, RewardModel
from unslothrl.training.metrics import Metrics, eval_metrics
from unslothrl.training.rollouts import RolloutStream


class Evaluation:
    """Draws the same completions of the same problems every time, under the newest version."""

    def __init__(
        self,
        config: Config,
        sets: Mapping[str, list[Task]],
        stream: RolloutStream,
        failures: FailureReport,
        view: Terminal,
        judge: Judge | None = None,
    ):
        """`judge` asks the run's reward model, where it has one."""
        self.config, self.sets, self.stream = config, sets, stream
        self.failures, self.view = failures, view
        self.model = RewardModel.of(rewards.choose(config.reward)) if judge else None
        self.judge = judge

    def draw(self, kind: str = "eval") -> dict[str, list[Group]]:
        """`eval_candidates` completions of every task. -> name of the set -> groups. `kind` is what
        the display calls it."""
        config = self.config
        tasks = [task for of_set in self.sets.values() for task in of_set]
        total = len(tasks) * config.eval_candidates
        indices = self.stream.send(
            tasks,
            config.eval_candidates,
            sampling.evaluation(config),
            (config.seed, "eval"),
            config.learner_chunk_size if config.learner_evaluates else 0,
        )
        groups = self.stream.wait(
            indices, lambda done, tokens: self.view.progress(kind, done, total, tokens)
        )
        if self.model is not None and self.judge is not None:
            groups = self.model.judged(groups, self.judge)
        self.failures.check(groups)
        rest, sizes = iter(groups), {name: len(of_set) for name, of_set in self.sets.items()}
        return {name: list(itertools.islice(rest, size)) for name, size in sizes.items()}

    def run(self) -> tuple[Metrics, dict[str, list[Group]]]:
        """-> (the metrics of every set, with the seconds that they took; what was drawn)."""
        started = time.perf_counter()
        drawn, metrics = self.draw(), Metrics()
        for name, groups in drawn.items():
            metrics |= eval_metrics(f"eval/{name}", groups)
        metrics["timing/eval_s"] = time.perf_counter() - started
        return metrics, drawn
