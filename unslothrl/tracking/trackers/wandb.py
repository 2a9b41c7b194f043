"""Weights & Biases: wandb.ai or a server of one's own; offline with WANDB_MODE=offline."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from unslothrl.tracking.trackers import COLUMNS, TrackedRun

ANSWER_S = 30  # in which the server must take the run, and what is left of it in the end


class Wandb:
    def __init__(self, run: TrackedRun):
        import wandb

        self.wandb = wandb
        self.run = wandb.init(
            project=run.project("WANDB_PROJECT"),
            id=run.id,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.config),
            allow_val_change=True,  # by what a resumed run sets otherwise
            resume=None if run.resumed_at is None else "allow",
            settings=wandb.Settings(
                console="off",
                x_disable_meta=True,  # the command's words, in which secrets may stand
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", ANSWER_S)),
                finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", ANSWER_S)),
            ),
        )
        # A resumed run repeats steps, and W&B's own step may never go back.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({"step": step, **metrics})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        table = self.wandb.Table(COLUMNS, [[row[name] for name in COLUMNS] for row in rows])
        self.run.log({"step": step, "samples": table})

    def close(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=1 if status == "failed" else 0)


def problem() -> str | None:
    """Online, W&B would ask for its key in the middle of the run's output."""
    import requests
    import wandb

    settings = wandb.setup().settings  # from its variables and files
    if settings.mode != "online" or settings.api_key or settings.identity_token_file:
        return None
    if requests.utils.get_netrc_auth(settings.base_url):  # where `wandb login` puts it
        return None
    return "it has no API key: run `wandb login`, or set WANDB_MODE=offline in the environment"


start = Wandb
