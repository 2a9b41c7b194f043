"""From a row to a record that has what the rewards of a run need."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unslothrl.columns import RowNeeds, UnusableRow, names_of
from unslothrl.data import formats
from unslothrl.data.formats import Columns, Record, Turns


@dataclass(frozen=True)
class Reader:
    """Reads rows whose columns are named or recognised."""

    columns: Columns = field(default_factory=Columns)
    needs: RowNeeds = field(default_factory=RowNeeds)

    def prompt(self, row: Mapping) -> Turns:
        """The row's conversation, whatever else it may lack. Raises UnusableRow."""
        return self.read(row).messages

    def read(self, row: Mapping) -> Record:
        """A row with its problem as the rewards have it asked. Raises UnusableRow."""
        record = formats.read(row, self.columns, self.needs.problems)
        *turns, (role, problem) = record.messages
        for ask in self.needs.asked:
            problem = ask(row, problem)
        return dataclasses.replace(record, messages=(*turns, (role, problem)))

    def record(self, row: Mapping) -> Record:
        """Raises UnusableRow, also for a row that lacks what is needed."""
        record = self.read(row)
        if self.needs.answer and not record.answers:
            raise no_answer(row, self.needs.answer)
        extra = dict(record.extra)
        if len(record.answers) > 1:
            extra["answers"] = list(record.answers)
        extra = {name: extra[name] for name in extra if name not in self.needs.replaced}
        for read in self.needs.readers:
            extra |= read(row)
        return dataclasses.replace(record, extra=extra)


def no_answer(row: Mapping, rewards: Sequence[str]) -> UnusableRow:
    """The error for a row without a gold answer, which `rewards` need."""
    why = f"which reward {' and '.join(rewards)} need{'s' * (len(rewards) == 1)}"
    empty = [name for name in formats.ANSWERS if name in row and row[name] is None]
    if empty:
        return UnusableRow(f"column {' and '.join(empty)} is empty, {why}")
    return UnusableRow(
        f"no column {' or '.join(formats.ANSWERS)}, {why}; it has {names_of(row)}: set "
        "--answer_column, or another --reward"
    )
