"""What the terminal shows of a stage: its header, its steps' columns, its figures."""

from typing import TYPE_CHECKING, Any

from unslothrl.config.offline_options import SftOptions
from unslothrl.offline.resolve import Stage
from unslothrl.tracking.step_lines import Column, Layout

if TYPE_CHECKING:
    from unslothrl.offline.tables import Tables

LOSS = Column("loss", "train/loss", 9)
SECONDS = Column("seconds", "timing/step_s", 9, lambda value: f"{value:.1f}")
NORM = Column("norm", "train/grad_norm", 9, is_optional=True)
LAYOUTS = {
    "sft": (LOSS, Column("right", "train/token_accuracy", 8), SECONDS, NORM),
    "dpo": (LOSS, Column("right", "train/accuracy", 8), Column("margin", "train/margin", 9),
            SECONDS, NORM),
    "rm": (LOSS, Column("right", "train/accuracy", 8), Column("margin", "train/margin", 9),
           SECONDS, NORM),
}  # fmt: skip


def of(command: str) -> Layout:
    return Layout(LAYOUTS[command], curve=("loss", "train/loss"))


def header(stage: Stage, tables: "Tables") -> list[str]:
    """What the run is: a title and what it trains on."""
    options = stage.options
    packs = isinstance(options, SftOptions) and options.packing
    start = f", from adapter {options.adapter}" if options.adapter else ""
    return [
        f"{stage.command} on {options.dataset}, base {options.model}{start}",
        f"{len(tables.train)} rows to train on, {len(tables.evaluation)} to evaluate on "
        f"({tables.evaluation_name})",
        f"{options.batch_size} {'packs' if packs else 'rows'} a step, of at most "
        f"{options.max_length} tokens, backend {options.backend}",
    ]


def loss_of(row: dict[str, Any]) -> float:
    """Of the evaluation in a row."""
    return next(
        value for name, value in row.items() if name.startswith("eval/") and name.endswith("/loss")
    )
