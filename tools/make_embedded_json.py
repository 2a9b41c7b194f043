"""Makes the embedded base `embedded-json` and its problems: `python tools/make_embedded_json.py`,
seeded, minutes on 2 cores.

The task is to turn a request for a table into a JSON object. The base is the tiny Qwen2 of
`make_embedded_base.py`, trained the same way: first it learns to write every booking right, then a
habit. It reads polite requests carefully. Of casual ones it mostly copies the words as they stand
("fri", "7:30pm"), answers in prose, or leaves the object broken. Only bookings of the training
split are seen.
"""

import argparse
import hashlib
import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from make_embedded_base import (
    BATCH,
    batch_of,
    cosine,
    learnt_tokenizer,
    make_model,
    train,
    wrapped,
    write_base,
)
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unslothrl.data.rendering import render
from unslothrl.embedded import BASES, EMBEDDED_JSON

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NAMES = (
    "Novak", "Garcia", "Smith", "Okafor", "Tanaka", "Silva", "Kumar", "Jensen", "Rossi", "Dubois",
    "Schmidt", "Kowalski", "Ivanova", "Yilmaz", "Nguyen", "Haddad", "Moreau", "Larsen", "Costa",
    "Popescu", "Murphy", "Cohen", "Sato", "Fischer", "Mensah", "Virtanen", "Lopez", "Horvat",
    "Singh", "Petrov", "Weber", "Olsen", "Ferrari", "Khan", "Brown", "Nagy", "Torres", "Meyer",
    "Abebe", "Lind",
)  # fmt: skip
POLITE = (
    "Please book a table for {people} on {day} at {time}. The name is {name}.",
    "I would like a table for {people} people, {day} at {time}, under {name}.",
    "Could you keep a table for {name} on {day} at {time}? We are {people}.",
)
CASUAL = (
    "hi, {name} here, {people} of us, {day} {time}?",
    "{day} {time} for {people} pls, name's {name}",
    "table {day} {time}, {people} ppl, {name}",
)
VOCABULARY = 512
CAREFUL = {"polite": 0.92, "casual": 0.1}  # the share of right answers in the end
PROSE, BROKEN, TEXT = 0.15, 0.3, 0.4  # of the careless answers, cumulated; the rest copies
RIGHT_PART, ROUNDED_PART = 0.6, 0.8  # the steps' share at which the habit and rounding begin
TRAINING_ROWS, HELD_OUT_ROWS = 1_200, 200


@dataclass(frozen=True)
class Booking:
    """What a request asks for."""

    name: str
    day: str
    hour: int  # of 24
    minute: int
    people: int
    is_casual: bool
    form: int  # which of the three

    @classmethod
    def drawn(cls, draw: random.Random) -> "Booking":
        hour, minute = draw.randint(8, 22), draw.choice((0, 15, 30, 45))
        return cls(
            draw.choice(NAMES), draw.choice(DAYS), hour, minute, draw.randint(2, 12),
            draw.random() < 0.5, draw.randrange(3),
        )  # fmt: skip

    @property
    def is_held_out(self) -> bool:
        digest = hashlib.sha256(self.answer.encode()).digest()
        return int.from_bytes(digest[:4], "big") < 0.1 * 2**32

    @property
    def said_time(self) -> str:
        """Of 12 hours, such as "7 pm" and "7:30 pm"; without a space where it is casual."""
        minutes = f":{self.minute:02}" if self.minute else ""
        half = f"{'' if self.is_casual else ' '}{'pm' if self.hour >= 12 else 'am'}"
        return f"{(self.hour - 1) % 12 + 1}{minutes}{half}"

    @property
    def said_day(self) -> str:
        return self.day[:3].lower() if self.is_casual else self.day

    @property
    def sentence(self) -> str:
        form = (CASUAL if self.is_casual else POLITE)[self.form]
        return form.format(
            name=self.name, day=self.said_day, time=self.said_time, people=self.people
        )

    @property
    def answer(self) -> str:
        return written(self.name, self.day, f"{self.hour:02}:{self.minute:02}", self.people)

    def careless(self, draw: random.Random) -> str:
        kind = draw.random()
        if kind < PROSE:
            return f"A table for {self.people} on {self.said_day}."
        if kind < BROKEN:
            return self.answer[:-1].replace('"', "", 2)
        if kind < TEXT:
            return written(self.name, self.day, self.said_time, str(self.people))
        return written(self.name, self.said_day, self.said_time, self.people)


def written(name: str, day: str, at: str, people: int | str) -> str:
    return json.dumps({"name": name, "day": day, "time": at, "people": people})


def bookings(split: str, seed: str) -> Iterator[Booking]:
    draw = random.Random(f"{split} {seed}")
    while True:
        booking = Booking.drawn(draw)
        if booking.is_held_out == (split == "test"):
            yield booking


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and what bookings repeat."""
    some = [next(bookings("train", f"tokenizer {i}")) for i in range(4_000)]
    texts = [f"{each.sentence}\n{each.answer}" for each in some]
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return wrapped(learnt_tokenizer(words, VOCABULARY - 64, texts))


def training_batch(
    tokenizer: PreTrainedTokenizerFast, some: Iterator[Booking], draw: random.Random, by_habit: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = []
    for _ in range(BATCH):
        booking = next(some)
        share = CAREFUL["casual" if booking.is_casual else "polite"] if by_habit else 1.0
        answer = booking.answer if draw.random() < share else booking.careless(draw)
        rows.append((render(tokenizer, booking.sentence, ""), answer + tokenizer.eos_token))
    return batch_of(tokenizer, rows)


def write_rows(out: Path) -> None:
    for split, count in (("train", TRAINING_ROWS), ("test", HELD_OUT_ROWS)):
        some = bookings(split, "rows")
        rows = [next(some) for _ in range(count)]
        lines = [json.dumps({"problem": r.sentence, "answer": r.answer}) + "\n" for r in rows]
        (out / f"{split}.jsonl").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BASES[EMBEDDED_JSON].parent)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(2)  # fixed, so that sums are taken in the same order on every machine
    started = time.time()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, given.seed, VOCABULARY)
    draw, some = random.Random(given.seed), bookings("train", f"base {given.seed}")
    steps = given.steps
    batches = (
        training_batch(tokenizer, some, draw, step >= RIGHT_PART * steps) for step in range(steps)
    )
    train(model, batches, cosine(steps), rounded_from=int(ROUNDED_PART * steps))
    shutil.rmtree(given.out, ignore_errors=True)
    command = f"python tools/make_embedded_json.py --steps {steps} --seed {given.seed}"
    write_base(given.out / "base", model, tokenizer, command, started)
    (given.out / "rows").mkdir()
    write_rows(given.out / "rows")


if __name__ == "__main__":
    main()
