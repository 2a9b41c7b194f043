"""What a run needs to go on as if it had never stopped. Safetensors and JSON, no pickle."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

STATE_FILE = "learner.safetensors"
PROGRESS_FILE = "progress.json"


@dataclass
class RunState:
    """Where the loop stands. Seeds follow from the step, so there is no more to it."""

    step: int = 0  # finished steps
    position: int = 0  # tasks drawn
    skipped_in_a_row: int = 0  # updates that were not finite, up to now
    policy_version: int = 0
    samples_seen: int = 0
    seconds: float = 0.0
    outstanding: list[int] = field(default_factory=list)  # positions drawn and not trained on yet
    batches: list[int] = field(default_factory=list)  # sizes of the batches drawn ahead
    evals: list[dict] | None = None  # [{"step", "eval/<set>/pass@1", ..., "timing/eval_s"}]


def save(folder: Path, state: RunState, learner: bytes) -> None:
    (folder / STATE_FILE).write_bytes(learner)
    (folder / PROGRESS_FILE).write_text(json.dumps(asdict(state), indent=2))


def load(folder: Path) -> tuple[RunState, bytes]:
    """Raises FileNotFoundError for a folder that is no checkpoint."""
    state = RunState(**json.loads((folder / PROGRESS_FILE).read_text()))
    return state, (folder / STATE_FILE).read_bytes()
