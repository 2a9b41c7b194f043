"""What a run is trained and evaluated on, in plain values."""

from dataclasses import dataclass, field

from unslothrl.data.columns import RowNeeds
from unslothrl.data.formats import Columns, Reader
from unslothrl.embedded import EMBEDDED


@dataclass(frozen=True)
class DataOptions:
    """Sources, and how their rows become tasks."""

    dataset: str  # a source, see `sources`
    holdout: float  # share held out where the data set has no test split
    eval_problems: int  # of each eval set, at most; 0: all
    max_prompt_tokens: int  # tasks with longer prompts are left out
    seed: int  # of the order, and of what is held out
    eval_dataset: tuple[str, ...] = ()  # sources, NAME=SOURCE or JSON maps of both
    columns: Columns = field(default_factory=Columns)  # of the training set
    needs: RowNeeds = field(default_factory=RowNeeds)  # of the run's rewards
    system_prompt: str | None = None  # the user's, in place of the rows' own
    default_prompt: str = ""  # system prompt of rows that have none
    keeps_row: bool = False  # for what reads the tasks' messages and columns as they stand

    @property
    def reader(self) -> Reader:
        """The reader of training rows. The embedded problems have columns of their own."""
        return Reader(Columns() if self.dataset == EMBEDDED else self.columns, self.needs)

    @property
    def added_system_prompt(self) -> str:
        """The user's, else the default, but for the embedded problems."""
        if self.system_prompt is not None:
            return self.system_prompt
        return "" if self.dataset == EMBEDDED else self.default_prompt
