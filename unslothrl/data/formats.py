"""What a row means: its conversation and its gold answers, recognised by its columns.

docs/data.md has the columns, and where in each the answer stands. A name with dots goes into what a
column holds; where that is text it is read as JSON. The case of letters does not count. Any column
can be chosen instead (`Columns`). What else a reward needs of a row it reads itself, by the same
functions.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from unslothrl.text import is_too_deep, json_or_text, plain

MOST_SHOWN = 400  # characters of columns' names in a message
PROMPTS = ("messages", "prompt", "problem", "question", "conversations", "instruction", "query")
ANSWERS = ("answer", "gt_answer", "ground_truth", "extra_info.answer", "reward_model.ground_truth")
WORKED = ("solution", "completion", "output", "response")  # the answer is somewhere in there
INSTRUCTION, INPUT, SYSTEM = "instruction", "input", "system"  # of Alpaca
KNOWN = {*PROMPTS, *ANSWERS, *WORKED, INPUT, SYSTEM}
LAST_TURN = "the last turn"
MAY_HOLD_OBJECT = ("reward_model.ground_truth",)  # such as tests, in place of an answer
ROLES = ("system", "user", "assistant", "tool")
OTHER_ROLES = {  # of ShareGPT and its relatives
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
WHO, WHAT = ("role", "from"), ("content", "value", "tool_calls")  # keys of a turn
_SAID = re.compile(r"\bthe (?:final )?answer is:?[ \t]*([^\n]*\w[^\n]*?)\.?\s*\Z", re.IGNORECASE)
Turns = tuple[tuple[str, str], ...]  # (role, content) of each
# Gives functions that write the problem of a row without a prompt, or return None: each with the
# columns that it reads, for messages.
Problems = Callable[[], tuple[tuple[str, Callable[[Mapping], str | None]], ...]]


class UnusableRow(ValueError):
    """A row that cannot be trained on. The message says why."""


def attempt(read: Callable[[Mapping], Any], row: Mapping, errors: tuple = (UnusableRow,)) -> Any:
    """What `read` makes of a row, or the error that says why it cannot be used."""
    try:
        return read(row)
    except errors as error:
        return error


@dataclass(frozen=True)
class Columns:
    """The columns of the prompt and of the answer, as the user names them; None: recognised."""

    prompt: str | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Record:
    messages: Turns  # the last is not the assistant's
    answers: tuple[str, ...]  # those that are right; () where the row has none
    extra: dict[str, Any]  # its other columns
    columns: Columns  # that the two were read from
    read: dict[str, Any]  # these columns as they stand, and those of another name
    asked: tuple[str, ...] = ()  # those of `read` that the prompt was read from

    @property
    def answer(self) -> str:
        """The first that is right, "" where the row has none."""
        return self.answers[0] if self.answers else ""

    @property
    def problem(self) -> str:
        """What the user asks last."""
        return self.messages[-1][1]


def missing(row: Mapping, names: Sequence[str], flag: str, why: str = "") -> UnusableRow:
    """The error for a row in which none of these columns holds anything."""
    if empty := [name for name in names if name in row]:
        return UnusableRow(f"column {' and '.join(empty)} is empty{why}")
    known = " or ".join(names)
    return UnusableRow(f"no column {known}{why}; it has {names_of(row)}: set --{flag}_column")


def read(row: Mapping, columns: Columns = Columns(), problems: Problems = tuple) -> Record:
    """Raises UnusableRow."""
    # of columns such as "Question" or " answer" -> the name by which they are known
    names = {name: name.strip().lower() for name in row if isinstance(name, str)}
    others = {name: plain for name, plain in names.items() if plain in KNOWN and plain not in row}
    as_it_stands, row = row, {others.get(name, name): value for name, value in row.items()}
    if columns.prompt is not None and columns.prompt == columns.answer:
        raise UnusableRow(f"column {columns.prompt} is the prompt: set another --answer_column")
    answer = columns.answer or next((name for name in ANSWERS if has_answer(row, name)), None)
    for name, flag in ((columns.prompt, "prompt"), (columns.answer, "answer")):
        if name is not None and value_of(row, name) is None:
            raise missing(row, (name,), flag)
    messages, last, prompt = read_prompt(row, columns.prompt, problems)
    if answer is not None:
        golds = all_answers(value_of(row, answer), answer)
    else:
        answer = next((name for name in WORKED if row.get(name) is not None), None)
        worked = last if answer is None else text_of(row[answer], answer)
        answer = answer or (LAST_TURN if last is not None else None)
        golds = (final_answer(worked),) if worked else ()
    in_prompt = {prompt, *prompt.split(" + ")}
    used = {*in_prompt, answer}
    extra = {str(name): plain_value(value) for name, value in row.items() if name not in used}
    used |= others.keys()
    both = {str(name): plain_value(v) for name, v in as_it_stands.items() if name in used}
    asked = tuple(name for name in both if others.get(name, name) in in_prompt)
    return Record(messages, golds, extra, Columns(prompt, answer), both, asked)


def read_prompt(
    row: Mapping, column: str | None, problems: Problems
) -> tuple[Turns, str | None, str]:
    """-> (turns, what the assistant says after them, the column). A row without a prompt asks what
    the first of `problems` that recognises it writes. Raises UnusableRow."""
    column = column or next((name for name in PROMPTS if row.get(name) is not None), None)
    if column == INSTRUCTION:  # Alpaca's, with its input, after a system turn where there is one
        parts = [name for name in (INSTRUCTION, INPUT) if filled(row.get(name))]
        asked = "\n\n".join(text_of(row[name], name) for name in parts or [INSTRUCTION])
        system = [("system", text_of(row[SYSTEM], SYSTEM))] if filled(row.get(SYSTEM)) else []
        read_from = [*parts, *([SYSTEM] if system else [])]
        return (*system, ("user", asked)), None, " + ".join(read_from)
    if column is not None:
        turns, last = conversation(value_of(row, column), column)
        if column == "conversations" and turns[0][0] != "system" and filled(row.get(SYSTEM)):
            turns = (("system", text_of(row[SYSTEM], SYSTEM)), *turns)
        return turns, last, column
    for columns, write in problems():
        problem = write(row)
        if problem is not None:
            return (("user", problem),), None, columns
    raise missing(row, PROMPTS, "prompt")


def filled(value: Any) -> bool:
    return value is not None and str(value).strip() != ""


def has_answer(row: Mapping, name: str) -> bool:
    """Whether a column is there and holds an answer, not an object for a reward to read."""
    value = value_of(row, name)
    holds_object = name in MAY_HOLD_OBJECT and isinstance(parsed(value), Mapping)
    return value is not None and not holds_object


def conversation(value: Any, column: str) -> tuple[Turns, str | None]:
    """-> (turns up to the last that is not the assistant's, what the assistant says after it)."""
    as_json = parsed(value)
    if not is_turns(as_json):
        return (("user", text_of(value, column)),), None
    turns = [(role_of(turn, column), content_of(turn, column)) for turn in as_json]
    last = turns.pop()[1] if turns and turns[-1][0] == "assistant" else None
    if not turns or turns[-1][0] not in ("user", "tool"):
        raise UnusableRow(f"column {column} has no turn of the user before the answer")
    return tuple(turns), last


def is_turns(value: Any) -> bool:
    """Whether it is turns: objects of which each has somebody say something. An answer in JSON may
    have a "role" or a "from" as well."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, Mapping) and is_turn(turn.keys()) for turn in value)
    )


def is_turn(keys: Set[Any]) -> bool:
    return not (keys.isdisjoint(WHO) or keys.isdisjoint(WHAT))


def role_of(turn: Mapping, column: str) -> str:
    """A turn's role, one of `ROLES`. Raises UnusableRow."""
    role = turn.get("role", turn.get("from"))
    role = OTHER_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        roles = ", ".join(ROLES)
        raise UnusableRow(f"column {column} has a turn with role {role!r:.60}: use {roles}")
    return role


def content_of(turn: Mapping, column: str) -> str:
    """A turn's text; parts of the type "text" are joined."""
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list) and content:
        parts = [part for part in content if isinstance(part, Mapping)]
        if len(parts) < len(content) or any(part.get("type") != "text" for part in parts):
            raise UnusableRow(f"column {column} has a turn with more than text")
        content = "".join(str(part.get("text", "")) for part in parts)
    return text_of(content, column)


def all_answers(value: Any, column: str) -> tuple[str, ...]:
    """The gold answers of a column, at least one. Raises UnusableRow."""
    if isinstance(value, list | tuple) and value:
        return tuple(text_of(item, column).strip() for item in value)
    text = text_of(value, column)
    last = text.rpartition("####")[2].strip()
    gold = boxed(last) or last
    if not gold:
        raise UnusableRow(f"column {column} has nothing after ####")
    return (gold,)


def final_answer(worked: str) -> str:
    """The answer at the end of a worked solution, or all of it where nothing marks one."""
    marked = boxed(worked) or tagged(worked)
    if marked is None and "####" not in worked and (said := _SAID.search(worked)) is not None:
        return said[1]
    return marked or worked.rpartition("####")[2].strip()


def text_of(value: Any, column: str) -> str:
    """As text, a whole number without ".0". UnusableRow unless it is that, and not empty."""
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not is_finite:
        raise UnusableRow(f"column {column} must be text, got {value!r:.60}")
    is_whole = isinstance(value, float) and value.is_integer()
    text = str(int(value) if is_whole else value)  # 579.0 is what pandas makes of 579
    if re.search("[\ud800-\udfff]", text):  # which JSON may hold, and UTF-8 lacks
        raise UnusableRow(f"column {column} has half a surrogate pair in {text!r:.60}")
    if not text.strip():
        raise UnusableRow(f"column {column} is empty")
    return text


@dataclass(frozen=True)
class Reader:
    """Reads rows for the rewards of a run (`rewards.reader_of`)."""

    columns: Columns = field(default_factory=Columns)
    needing: tuple[str, ...] = ()  # rewards that need a gold answer
    rewards: tuple[Any, ...] = ()  # those of the package, each a `rewards.reward.Reward`
    problems: Problems = tuple

    def prompt(self, row: Mapping) -> Turns:
        """The row's conversation, whatever else it may lack. Raises UnusableRow."""
        return self.read(row).messages

    def read(self, row: Mapping) -> Record:
        """A row with its problem as the rewards have it asked. Raises UnusableRow."""
        record = read(row, self.columns, self.problems)
        *turns, (role, problem) = record.messages
        for reward in self.rewards:
            problem = problem if reward.asked is None else reward.asked(row, problem)
        return replace(record, messages=(*turns, (role, problem)))

    def record(self, row: Mapping) -> Record:
        """Raises UnusableRow, also for a row that lacks what is needed."""
        record = self.read(row)
        if self.needing and not record.answers:
            names = " and ".join(self.needing)
            why = f", which reward {names} need{'s' * (len(self.needing) == 1)}"
            raise missing(row, ANSWERS, "answer", why)
        extra = dict(record.extra)
        if len(record.answers) > 1:
            extra["answers"] = list(record.answers)
        replaced = {name for reward in self.rewards for name in reward.replaces}
        extra = {name: extra[name] for name in extra if name not in replaced}
        for reward in self.rewards:
            extra |= reward.read_row(row)
        return replace(record, extra=extra)


# Columns, and how a text states its answer


def value_of(row: Mapping, name: str) -> Any:
    """The value of a column, None without it. Dots go into what a column holds: "a.b"."""
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    inside = parsed(row.get(first))
    return value_of(inside, rest) if rest and isinstance(inside, Mapping) else None


def parsed(value: Any) -> Any:
    """The object or list of a text that is JSON; any other value, or a deeper one, as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        found = json_or_text(value)
        return value if is_too_deep(value, found) else found
    return value


def plain_value(value: Any) -> Any:
    """A value in the types of JSON; others, such as dates, as text."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def names_of(row: Mapping) -> str:
    """The names of a row's columns, for a message."""
    return plain(", ".join(map(str, row)), MOST_SHOWN) or "none"


TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # of the think-and-answer form
_BRACES = re.compile(  # a box of a digit; an escape, which takes the character after it along
    r"\\(?:boxed|fbox) {0,9}(\d)(?!\d|[.,]\d)|\\.|[{}]", re.DOTALL
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\Z")
_THOUSANDS = re.compile(r"([-+]?\$?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")


def normalise(answer: str) -> str:
    """The answer as it is compared: trimmed, "1,234" as "1234"; "1,2" is not "12"."""
    answer = answer.strip()
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


def tagged(text: str) -> str | None:
    """Between the last `<answer>` and the `</answer>` after it; None without both, if cut off."""
    _, opening, rest = text.rpartition("<answer>")
    answer, closing, _ = rest.partition("</answer>")
    return answer.strip() if opening and closing else None


def boxed(text: str) -> str | None:
    """The content of the last box. None without a box that closes. Escaped braces do not count."""
    return next(reversed(boxes(text)), None)


def boxes(text: str) -> list[str]:
    """The content of each box that closes, in order, or its digit where it has no braces; of nested
    boxes only the innermost's."""
    open_braces: list[int] = []
    spans: list[tuple[int, int]] = []
    last = -1
    for brace in _BRACES.finditer(text):
        at = brace.start()
        if brace[1]:
            last = brace.start(1)
            spans.append((last - 1, brace.end(1)))
        elif brace[0] == "{":
            open_braces.append(at)
        elif brace[0] == "}" and open_braces:
            opened = open_braces.pop()
            if opened > last and _BOX.search(text, max(0, opened - 16), opened):
                last = opened
                spans.append((opened, at))
    return [text[opened + 1 : end].strip() for opened, end in spans]
