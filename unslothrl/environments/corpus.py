"""What the tool `search` looks in: passages of a file of rows, of a text, or of a folder of both.

Rows have their text in a column of `TEXT`. A longer text is cut into passages, so that what a
search finds is what it shows.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unslothrl.data import files
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, leads_out, read_text
from unslothrl.text import plain

TEXT = ("text", "contents", "content", "passage", "body", "document")
TITLE, ID = "title", ("id", "_id", "docid", "doc_id", "pid")
TEXTS = (".txt", ".md")
MOST_PASSAGE, MOST_TITLE = 1000, 100  # characters
ENDS = ("\n\n", "\n", ". ", " ")  # where a passage ends, the best first
WORD = re.compile(r"\w")


class Passage(NamedTuple):
    name: str  # the row's title or id, else its place
    text: str
    title: str = ""  # which is searched too


def passages(name: str) -> tuple[list[Passage], int]:
    """-> (the passages of a file or folder, in order; how many rows and text files without a word
    are left out). UserError."""
    found: list[Passage] = []
    dropped = 0
    for shown, file in files_of(name).items():
        if file.suffix.lower() in TEXTS:
            documents: Iterable[Passage] = [Passage(shown, read_text(file))]
        else:
            rows = files.read(file)
            documents = (of_row(rows[i], f"{shown} {i + 1}") for i in range(len(rows)))
        for document in documents:
            if WORD.search(document.text) is None:
                dropped += 1
            else:
                found += parts(document)
    if not found:
        raise refused(name, f"there is no text in it: rows have it in a column {TEXT[0]}")
    return found, dropped


def files_of(name: str) -> dict[str, Path]:
    """The file, or those of the folder and below it that can be read, by their names there.
    UserError."""
    path = expanded(name)
    if is_file(path):
        if not is_readable(path):
            kinds = ", ".join([*files.READERS, *TEXTS])
            raise refused(name, f"unknown kind of file: use {kinds}")
        return {path.name: path}
    if not name or not is_folder(path):
        raise refused(name, "no such file or folder: check the path")
    below = [file for file in files.below(path) if is_readable(file) and is_file(file)]
    found = {str(file.relative_to(path)): file for file in below}
    if not found:
        raise refused(name, f"no file with passages in this folder: use {TEXTS[0]} or .jsonl")
    for shown, file in found.items():
        if leads_out(file, path):
            out = "a link that leads out of the folder: copy the file there"
            raise refused(name, f"{plain(shown)}: {out}")
    return found


def of_row(row: Mapping[str, Any], place: str) -> Passage:
    text = next((row[name] for name in TEXT if isinstance(row.get(name), str)), "")
    title = row.get(TITLE)
    title = one_line_of(title) if isinstance(title, str) else ""
    ids = (one_line_of(str(row[name])) for name in ID if row.get(name) is not None)
    return Passage(title or next(ids, "") or place, text, title)


def refused(name: str, why: str) -> UserError:
    return UserError(f"tools search:{plain(name)}: {why}")


def is_readable(file: Path) -> bool:
    return file.suffix.lower() in TEXTS or files.kind_of(file.name) is not None


def one_line_of(text: str) -> str:
    return " ".join(text[: 4 * MOST_TITLE].split())[:MOST_TITLE]


def parts(document: Passage) -> Iterator[Passage]:
    """A document in parts of at most `MOST_PASSAGE` characters, cut where it has an end."""
    text = document.text.replace("\r\n", "\n").strip()
    if len(text) <= MOST_PASSAGE:
        yield document._replace(text=text)
        return
    begin, number = 0, 0
    while begin < len(text):
        end = end_of(text, begin)
        part = text[begin:end].strip()
        if WORD.search(part) is not None:
            number += 1
            yield Passage(f"{document.name}, part {number}", part, document.title)
        begin = end


def end_of(text: str, begin: int) -> int:
    """Of the passage that begins there: behind its last end in the second half."""
    last = begin + MOST_PASSAGE
    if len(text) <= last:
        return len(text)
    for mark in ENDS:
        at = text.rfind(mark, begin + MOST_PASSAGE // 2, last)
        if at >= 0:
            return at + len(mark)
    return last
