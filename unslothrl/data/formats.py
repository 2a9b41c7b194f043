"""What a row means: its conversation, its gold answers, its tests; recognised by its columns.

    prompt   messages | prompt | problem | question          text, or a list of {"role", "content"}
    answer   answer | gt_answer | ground_truth | extra_info.answer | reward_model.ground_truth
             as it stands; of GSM8K's the part after `####`; a list: any of them is right
             solution | completion | the conversation's last turn, where the assistant has it
             what stands in the last \\boxed{}, between the last <answer> tags or after `####`
    tests    test_cases | tests | input_output | reward_model.ground_truth
             {"inputs": [...], "outputs": [...]}, with "fn_name" calls of a function
    numbers  numbers | nums, with target                     a countdown game; it may lack a prompt

A name with dots goes into what a column holds; where that is text it is read as JSON. Any column
can be chosen instead (`Columns`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unslothrl import long_json
from unslothrl.rewards import answers

PROMPTS = ("messages", "prompt", "problem", "question")
ANSWERS = (
    "answer",
    "gt_answer",
    "ground_truth",
    "extra_info.answer",
    "reward_model.ground_truth",
)
WORKED = ("solution", "completion")  # the answer is somewhere in there
LAST_TURN = "the last turn"
TESTS = ("test_cases", "tests", "input_output", "reward_model.ground_truth")
NUMBERS = ("numbers", "nums")
ROLES = ("system", "user", "assistant", "tool")
COUNTDOWN = (
    "Using the numbers {numbers}, write an equation that equals {target}. Use each number exactly "
    "once, and only +, -, *, / and parentheses."
)


class Unusable(ValueError):
    """A row that cannot be trained on; says why."""


@dataclass(frozen=True)
class Columns:
    """The columns that the user names; None: recognised."""

    prompt: str | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Record:
    """A row as it was understood."""

    messages: tuple[tuple[str, str], ...]  # (role, content), the last turn not the assistant's
    answers: tuple[str, ...]  # those that are right; () where the row has none
    extra: dict[str, Any]  # its other columns
    columns: Columns  # where the two were found

    @property
    def answer(self) -> str:
        """The first that is right, "" where the row has none."""
        return self.answers[0] if self.answers else ""

    @property
    def problem(self) -> str:
        """What the user asks last."""
        return self.messages[-1][1]


def read(row: Mapping, columns: Columns = Columns()) -> Record:
    """Raises Unusable."""
    prompt = columns.prompt or next((name for name in PROMPTS if row.get(name) is not None), None)
    answer = columns.answer or next((name for name in ANSWERS if has_answer(row, name)), None)
    last: str | None = None
    for name, flag in ((columns.prompt, "prompt"), (columns.answer, "answer")):
        if name is not None and find(row, name) is None:
            raise Unusable(
                f"column {name} is empty"
                if name in row
                else f"no column {name}; it has {known(row)}: set another --{flag}_column"
            )
    if prompt is not None:
        messages, last = conversation(find(row, prompt), prompt)
    elif any(name in row for name in NUMBERS) and "target" in row:
        messages, prompt = (("user", countdown(row)),), "numbers, target"
    elif empty := [name for name in PROMPTS if name in row]:
        raise Unusable(f"column {' and '.join(empty)} is empty")
    else:
        raise Unusable(
            f"no column {' or '.join(PROMPTS)}; it has {known(row)}: set --prompt_column"
        )
    if answer is not None:
        found = all_answers(find(row, answer), answer)
    else:
        answer = next((name for name in WORKED if row.get(name) is not None), None)
        worked = last if answer is None else text_of(row[answer], answer)
        answer = answer or (LAST_TURN if last is not None else None)
        found = (final_answer(worked),) if worked else ()
    used = {prompt, answer}
    extra = {str(name): plain(value) for name, value in row.items() if name not in used}
    return Record(messages, found, extra, Columns(prompt, answer))


def known(row: Mapping) -> str:
    return ", ".join(map(str, row)) or "none"


def find(row: Mapping, name: str) -> Any:
    """The value of a column, or of what a column holds; None where it is not there."""
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    inside = parsed(row.get(first))
    return find(inside, rest) if rest and isinstance(inside, Mapping) else None


def has_answer(row: Mapping, name: str) -> bool:
    """Whether a column is there and does not hold tests."""
    value = find(row, name)
    holds_tests = name in TESTS and isinstance(parsed(value), Mapping)
    return value is not None and not holds_tests


def parsed(value: Any) -> Any:
    """What stands in a text that is JSON; other values as they are."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return long_json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def conversation(value: Any, column: str) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """-> (turns up to the last that is not the assistant's, what the assistant says after it)."""
    as_json = parsed(value)
    turns_only = isinstance(as_json, list) and all(
        isinstance(turn, Mapping) and "role" in turn for turn in as_json
    )
    if not turns_only or not as_json:
        return (("user", text_of(value, column)),), None
    turns = [(role_of(turn, column), content_of(turn, column)) for turn in as_json]
    last = turns.pop()[1] if turns and turns[-1][0] == "assistant" else None
    if not turns or turns[-1][0] not in ("user", "tool"):
        raise Unusable(f"column {column} has no turn of the user before the answer")
    return tuple(turns), last


def role_of(turn: Mapping, column: str) -> str:
    role = turn.get("role")
    if role not in ROLES:
        raise Unusable(f"column {column} has a turn with role {role!r:.60}: use {', '.join(ROLES)}")
    return role


def content_of(turn: Mapping, column: str) -> str:
    """A turn's text; parts of the type "text" are joined."""
    content = turn.get("content")
    if isinstance(content, list) and content:
        parts = [part for part in content if isinstance(part, Mapping)]
        if len(parts) < len(content) or any(part.get("type") != "text" for part in parts):
            raise Unusable(f"column {column} has a turn with more than text")
        content = "".join(str(part.get("text", "")) for part in parts)
    return text_of(content, column)


def countdown(row: Mapping) -> str:
    numbers = next(row[name] for name in NUMBERS if name in row)
    return COUNTDOWN.format(numbers=numbers, target=row["target"])


def all_answers(value: Any, column: str) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and value:
        return tuple(text_of(one, column).strip() for one in value)
    text = text_of(value, column)
    _, marker, gold = text.rpartition("####")
    gold = gold.strip() if marker else text.strip()
    if not gold:
        raise Unusable(f"column {column} has nothing after ####")
    return (gold,)


def final_answer(worked: str) -> str:
    """The answer at the end of a worked solution, or all of it where nothing marks one."""
    found = answers.boxed(worked) or answers.tagged(worked)
    return found or worked.rpartition("####")[2].strip()


def text_of(value: Any, column: str) -> str:
    """A value as text. Unusable unless it is text, or a finite number, that is not empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Unusable(f"column {column} must be text, got {value!r:.60}")
    if isinstance(value, float) and not math.isfinite(value):
        raise Unusable(f"column {column} must be text, got {value}")
    text = long_json.digits(value) if isinstance(value, int) else str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unusable(f"column {column} has half a surrogate pair in {text!r:.60}") from None
    if not text.strip():
        raise Unusable(f"column {column} is empty")
    return text


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def tests_of(row: Mapping) -> dict[str, Any] | None:
    """-> {"inputs": [...], "outputs": [...], "fn_name": name or None}; None: the row has no tests.

    Unusable where they are malformed or empty: a program that meets no test would be right.
    """
    for column in TESTS:
        value = parsed(find(row, column))
        if isinstance(value, Mapping) and "inputs" in value and "outputs" in value:
            return checked_tests(value, column)
        if value is not None and column != TESTS[-1]:
            raise Unusable(f'column {column} must be {{"inputs": [...], "outputs": [...]}}')
    return None


def checked_tests(value: Mapping, column: str) -> dict[str, Any]:
    inputs, outputs, name = value["inputs"], value["outputs"], value.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise Unusable(f"column {column} has no tests")
    if len(inputs) != len(outputs):
        raise Unusable(f"column {column} has {len(inputs)} inputs and {len(outputs)} outputs")
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise Unusable(f"column {column} has fn_name {name!r:.60}, which is no name")
    if name is None:
        inputs, outputs = list(as_lines(inputs, column)), list(as_lines(outputs, column))
    return {"inputs": inputs, "outputs": outputs, "fn_name": name}


def as_lines(values: list, column: str) -> Iterator[str]:
    """stdin and stdout as text; a list is one with a line each."""
    for value in values:
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            value = "\n".join(value)
        if not isinstance(value, str):
            raise Unusable(f"column {column} has {value!r:.60} where text must be")
        yield value


def numbers_of(row: Mapping) -> dict[str, Any] | None:
    """-> {"numbers": [...], "target": ...} of a countdown game; None: the row is none. Unusable."""
    where = row if "target" in row else parsed(row.get("extra_info"))
    if not isinstance(where, Mapping) or "target" not in where:
        where = parsed(find(row, "reward_model.ground_truth"))
    if not isinstance(where, Mapping) or "target" not in where:
        return None
    numbers = next((parsed(where[name]) for name in NUMBERS if name in where), None)
    values = [whole(value) for value in numbers] if isinstance(numbers, list) else []
    target = whole(where["target"])
    if not values or target is None or None in values:
        raise Unusable("a countdown game needs numbers, a list of whole numbers, and a target")
    return {"numbers": values, "target": target}


def whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value) if float(value).is_integer() else None
    except (ValueError, OverflowError):
        return None
