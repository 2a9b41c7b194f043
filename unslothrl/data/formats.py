"""What a row means: its problem and its gold answer, recognised by its columns.

problem, answer     MATH-500 and system D: the answer as it stands
question, answer    GSM8K: the gold answer follows `####`; without it, the answer as it stands
"""

import math
from collections.abc import Mapping

from unslothrl.errors import UserError

PROBLEM_COLUMNS = ("problem", "question")
ANSWER_COLUMN = "answer"


def read_row(row: Mapping, where: str) -> tuple[str, str]:
    """-> (problem, gold answer). UserError names the row (`where`) and the columns it has."""
    problem_column = next((name for name in PROBLEM_COLUMNS if name in row), None)
    missing = [] if problem_column else [" or ".join(PROBLEM_COLUMNS)]
    missing += [] if ANSWER_COLUMN in row else [ANSWER_COLUMN]
    if missing:
        raise UserError(
            f"dataset {where}: no column {' and no column '.join(missing)}; "
            f"it has {', '.join(map(str, row)) or 'no columns'}: rename its columns"
        )
    problem, answer = row[problem_column], row[ANSWER_COLUMN]
    for column, value in ((problem_column, problem), (ANSWER_COLUMN, answer)):
        if not is_text(value):
            raise UserError(
                f"dataset {where}: column {column} must be text, got {repr(value)[:60]}: "
                "mend or drop the row"
            )
    gold = gold_answer(str(answer))
    if not gold:
        raise UserError(
            f"dataset {where}: column {ANSWER_COLUMN} has nothing after ####: mend or drop the row"
        )
    return str(problem), gold


def is_text(value: object) -> bool:
    """Text or a finite number that can be written as UTF-8 and is not empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    try:
        return bool(str(value).strip().encode())
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def gold_answer(answer: str) -> str:
    """What counts of an answer column: the part after the last `####`, if there is one."""
    _, marker, gold = answer.rpartition("####")
    return gold.strip() if marker else answer.strip()
