"""Rows to tasks: read, rendered by the tokenizer's chat template and tokenised; rows that cannot be
used are counted."""

import ctypes
import itertools
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unslothrl.data.files import PickedRows, Rows
from unslothrl.data.formats import Reader, Record, UnusableRow, attempt
from unslothrl.errors import UserError
from unslothrl.records import Task

LONGEST_S = 10.0  # that a template may take for one text
BATCH = 1_000  # prompts tokenised in one call


def turns_of(
    messages: Sequence[tuple[str, str]] | str, system_prompt: str, replaces: bool = False
) -> list[tuple[str, str]]:
    """(role, content) of each turn. A text is one turn of the user. The conversation's own system
    turn stays unless `system_prompt` `replaces` it. An empty one leaves the system turn out."""
    turns = [("user", messages)] if isinstance(messages, str) else list(messages)
    if turns[0][0] == "system" and replaces:
        del turns[0]
    if system_prompt and turns[0][0] != "system":
        turns.insert(0, ("system", system_prompt))
    return turns


def render(tokenizer, messages: Sequence[tuple[str, str]] | str, system_prompt: str) -> str:
    """The chat template's text of `turns_of` up to where the assistant begins. UserError."""
    turns = turns_of(messages, system_prompt)
    conversation = [{"role": role, "content": content} for role, content in turns]
    advice = 'set --system_prompt "", or choose another model'
    return by_template(tokenizer, conversation, advice, add_generation_prompt=True)


def tokenise(tokenizer, prompts: list[str]) -> list[list[int]]:
    """Token ids of rendered prompts; the template has written the special tokens already."""
    if not prompts:
        return []
    # Not verbose: what is too long is left out, and counted.
    return tokenizer(prompts, add_special_tokens=False, verbose=False)["input_ids"]


class TakesTooLong(BaseException):  # which no part of a template catches
    def __str__(self) -> str:
        return f"it takes longer than {LONGEST_S:g} s"


def by_template(tokenizer, messages: Sequence[Mapping[str, Any]], advice: str, **options) -> str:
    """What the template writes of `messages`. UserError, which ends in `advice`, where it refuses
    them, writes nothing, or takes longer than `LONGEST_S`."""
    # Raises TakesTooLong here then, in any thread, between calls of C.
    where = (ctypes.c_ulong(threading.get_ident()), ctypes.py_object(TakesTooLong))
    timer = threading.Timer(LONGEST_S, ctypes.pythonapi.PyThreadState_SetAsyncExc, where)
    timer.daemon = True
    try:
        timer.start()
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        finally:
            timer.cancel()
            timer.join()  # what it has raised arrives here at the latest
        if not text:
            raise ValueError("it writes nothing")
        return text
    except (Exception, TakesTooLong) as error:  # whatever a template raises
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise UserError(
            f"model: its chat template refuses a conversation of {roles:.200} "
            f"({' '.join(str(error).split()):.200}): {advice}"
        ) from None


@dataclass
class Skipped:
    """Rows that do not become tasks: how many, and why."""

    rows: int = 0  # that were read, skipped or not
    too_long: list[int] = field(default_factory=list)  # lengths in tokens
    unusable: dict[str, list[int]] = field(default_factory=dict)  # reason -> [count, first row]
    source: Rows | None = None  # whose rows are numbered; it may be a share of a file's

    def add(self, reason: str, row: int) -> None:
        """Counts an unusable row; `row` is its number in `source`, from 1 on."""
        self.unusable.setdefault(reason, [0, self.in_source(row)])[0] += 1

    def in_source(self, row: int) -> int:
        """The number of a row, from 1 on, where those of `source` were picked from."""
        index, rows = row - 1, self.source
        while isinstance(rows, PickedRows):
            index, rows = int(rows.indices[index]), rows.rows
        return index + 1

    def notes(self, name: str, limit: int) -> list[str]:
        return [f"{name}: of {self.rows} rows not used: {line}" for line in self.lines(limit)]

    def lines(self, limit: int) -> list[str]:
        """A line for each reason, with the number of rows; `limit` is that of prompts in tokens."""
        lines = [f"{count} {why} (row {row})" for why, (count, row) in self.unusable.items()]
        if self.too_long:
            longest = max(self.too_long)
            lines.append(
                f"{len(self.too_long)} longer than {limit} tokens (the longest: {longest})"
            )
        return lines


@dataclass(frozen=True)
class Renderer:
    """Turns rows into tasks; prompts over `max_prompt_tokens` are dropped, never cut."""

    tokenizer: object
    system_prompt: str
    max_prompt_tokens: int
    replaces: bool = False  # whether the system prompt replaces a row's own
    reader: Reader = field(default_factory=Reader)

    def tasks(
        self, name: str, rows: Iterable[tuple[int, Mapping]], skipped: Skipped
    ) -> Iterator[Task]:
        """Of (number, row) pairs, but for `skipped` ones. UserError: one prompt of two problems."""
        asked: dict[int, tuple[int, int]] = {}  # hash of ids -> (hash of the problem, its row)
        for batch in batches(rows, BATCH):
            kept: list[tuple[int, Record, list[tuple[str, str]], str]] = []
            for number, row in batch:
                skipped.rows += 1
                record = attempt(self.reader.record, row)
                if isinstance(record, UnusableRow):
                    skipped.add(str(record), number)
                else:
                    turns = turns_of(record.messages, self.system_prompt, self.replaces)
                    kept.append((number, record, turns, render(self.tokenizer, turns, "")))
            ids = tokenise(self.tokenizer, [text for *_, text in kept])
            for (number, record, turns, text), tokens in zip(kept, ids, strict=True):
                problem = hash(plain(record.problem))
                other, first = asked.setdefault(hash(tuple(tokens)), (problem, number))
                if other != problem:
                    rows_named = f"{skipped.in_source(first)} and {skipped.in_source(number)}"
                    raise UserError(
                        f"{name} rows {rows_named}: different problems have the same prompt: the "
                        "chat template or tokenizer drops what the user asks: choose another model"
                    )
                if len(tokens) > self.max_prompt_tokens:
                    skipped.too_long.append(len(tokens))
                else:
                    yield Task(f"{name}/{number - 1}", record.problem, record.answer, text,
                               tuple(tokens), record.extra, tuple(turns), record.read,
                               record.asked)  # fmt: skip


def plain(problem: str) -> str:
    """What a template or a tokenizer may leave out of a problem: case, spaces, forms of letters."""
    return " ".join(unicodedata.normalize("NFKC", problem).casefold().split())


def batches(items: Iterable, size: int) -> Iterator[list]:
    """The items in lists of `size`, the last of which may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def numbered(rows: Rows) -> Iterator[tuple[int, Mapping]]:
    """(number from 1 on, row) of all rows."""
    for index in range(len(rows)):
        yield index + 1, rows[index]


def check_usable(
    name: str, skipped: Skipped, kept: int, limit: int, source: str = "",
    option: str = "max_prompt_tokens", what: str = "prompts",
) -> None:  # fmt: skip
    """UserError where there are no rows, more than half of them cannot be used, or none fits into
    `limit`, which `option` says. `source`: what they were read from, if `name` does not say so."""
    if not skipped.rows:
        raise UserError(f"{name}: it is empty: give one with rows")
    unusable = sum(count for count, _ in skipped.unusable.values())
    if unusable > skipped.rows / 2:
        reason, (_, row) = max(skipped.unusable.items(), key=lambda item: item[1][0])
        where = f" of {source}" if source else ""
        counts = f" ({unusable} of {skipped.rows} rows cannot be used)"
        raise UserError(f"{name} row {row}{where}: {reason}; fix or drop the row{counts}")
    if not kept:
        lengths = skipped.too_long
        raise UserError(
            f"{option} {limit}: all {len(lengths)} {what} of {name} are longer, the shortest by "
            f"{min(lengths) - limit}: set --{option} {max(lengths)}"
        )
