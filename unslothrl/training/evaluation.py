"""pass@1 and best-of-n on the evaluation sets, by the same stream that training draws from."""

import itertools
import time

from unslothrl.config import sampling
from unslothrl.config.options import Config
from unslothrl.data.tasks import Data
from unslothrl.rewards.failures import FailureReport
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.metrics import Metrics, eval_metrics
from unslothrl.training.rollouts import RolloutStream


class Evaluation:
    """Draws the same completions of the same problems every time, under the newest version."""

    def __init__(
        self,
        config: Config,
        data: Data,
        stream: RolloutStream,
        failures: FailureReport,
        view: Terminal,
    ):
        self.config, self.sets, self.stream = config, data.evals, stream
        self.failures, self.view = failures, view

    def run(self) -> Metrics:
        """The metrics of every set, and the seconds that they took."""
        config = self.config
        started = time.perf_counter()
        tasks = [task for of_set in self.sets.values() for task in of_set]
        total = len(tasks) * config.eval_candidates
        indices = self.stream.send(
            tasks, config.eval_candidates, sampling.evaluation(config), (config.seed, "eval")
        )
        groups = self.stream.wait(
            indices, lambda done, tokens: self.view.progress("eval", done, total, tokens)
        )
        self.failures.check(groups)
        rest, metrics = iter(groups), Metrics()
        for name, of_set in self.sets.items():
            metrics |= eval_metrics(f"eval/{name}", list(itertools.islice(rest, len(of_set))))
        metrics["timing/eval_s"] = time.perf_counter() - started
        return metrics
