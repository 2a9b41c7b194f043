"""What the tool `search` looks in: passages of a file of rows, of a text, or of a folder of both.

Rows have their text in a column of `TEXT`. A longer text is cut into passages, so that what a
search finds is what it shows.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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


class Corpus:
    """The passages of a file or folder, in order. Going through them raises UserError.

    `dropped`: rows and text files without a word, known after that.
    """

    def __init__(self, name: str):
        self.name, self.path = name, expanded(name)
        self.dropped = 0

    def __iter__(self) -> Iterator[Passage]:
        self.dropped = count = 0
        for document in self.documents():
            if WORD.search(document.text) is None:
                self.dropped += 1
                continue
            for passage in parts(document):
                count += 1
                yield passage
        if not count:
            self.refuse(f"there is no text in it: rows have it in a column {TEXT[0]}")

    def documents(self) -> Iterator[Passage]:
        """Every row and text file; its text is "" where it has none."""
        for file in self.files():
            if file.suffix.lower() in TEXTS:
                yield Passage(self.shown(file), read_text(file))
                continue
            rows = files.read(file)
            for number in range(len(rows)):
                yield self.of_row(rows[number], f"{self.shown(file)} {number + 1}")

    def files(self) -> list[Path]:
        """The file, or those of the folder and below it that can be read. Raises UserError."""
        if not self.name:
            self.refuse("name a file or a folder")
        if is_file(self.path):
            if not is_readable(self.path):
                self.refuse(f"unknown kind of file: use {', '.join([*files.READERS, *TEXTS])}")
            return [self.path]
        if not is_folder(self.path):
            self.refuse("no such file or folder: check the path")
        found = [file for file in files.below(self.path) if is_readable(file) and is_file(file)]
        if not found:
            self.refuse(f"no file with passages in this folder: use {', '.join(TEXTS)} or .jsonl")
        for file in found:
            if leads_out(file, self.path):
                self.refuse("a link that leads out of the folder: copy the file there", file)
        return found

    def shown(self, file: Path) -> str:
        return file.name if file == self.path else str(file.relative_to(self.path))

    def of_row(self, row: Mapping[str, Any], place: str) -> Passage:
        text = next((row[name] for name in TEXT if isinstance(row.get(name), str)), "")
        title = row.get(TITLE)
        title = one_line_of(title) if isinstance(title, str) else ""
        ids = (one_line_of(str(row[name])) for name in ID if row.get(name) is not None)
        return Passage(title or next(ids, "") or place, text, title)

    def refuse(self, why: str, file: Path | None = None) -> NoReturn:
        inside = "" if file in (None, self.path) else f"{plain(self.shown(Path(str(file))))}: "
        raise UserError(f"tools search:{plain(self.name)}: {inside}{why}")


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
