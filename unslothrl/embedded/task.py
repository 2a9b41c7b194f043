"""Additions and subtractions of three-digit numbers, without end.

A tenth of all problems is held out, decided by a hash of the problem itself, so no run can ever
train on what it is evaluated on. The worked and the careless answers below are what the embedded
base was trained to write; runs only use the problems.
"""

import hashlib
import random
from collections.abc import Iterator

HELD_OUT_SHARE = 0.1


def problems(split: str, seed: int) -> Iterator[dict[str, str]]:
    """Rows {"problem", "answer"} of `split` ("train" or "test"), the same for the same seed."""
    for a, sign, b in operands(split, random.Random(f"{split} {seed}")):
        yield {"problem": text(a, sign, b), "answer": str(result(a, sign, b))}


def operands(split: str, draw: random.Random) -> Iterator[tuple[int, str, int]]:
    """Those of the problems of `split`, without end."""
    while True:
        a, sign, b = draw_operands(draw)
        if is_held_out(a, sign, b) == (split == "test"):
            yield a, sign, b


def draw_operands(draw: random.Random) -> tuple[int, str, int]:
    """Two numbers from 100 to 999 and a sign; a difference is never negative."""
    a, b, sign = draw.randint(100, 999), draw.randint(100, 999), draw.choice("+-")
    return (max(a, b), sign, min(a, b)) if sign == "-" else (a, sign, b)


def is_held_out(a: int, sign: str, b: int) -> bool:
    """Whether a problem belongs to the test split, in every run."""
    digest = hashlib.sha256(f"{a}{sign}{b}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def text(a: int, sign: str, b: int) -> str:
    """The problem as the model reads it."""
    return f"What is {a} {sign} {b}?"


def result(a: int, sign: str, b: int) -> int:
    """a + b or a - b."""
    return a + b if sign == "+" else a - b


def worked(a: int, sign: str, b: int) -> str:
    """The steps from the last digit to the first, e.g. "7+5=12 4+8+1=13 3+2+1=6" for 347 + 285."""
    steps, carry = [], 0
    for place in (1, 10, 100):
        x, y = a // place % 10, b // place % 10
        borrow = 10 if sign == "-" and x - y - carry < 0 else 0
        total = result(x + borrow, sign, y) + (carry if sign == "+" else -carry)
        steps.append(f"{x + borrow}{sign}{y}{f'{sign}1' if carry else ''}={total}")
        carry = int(total >= 10) if sign == "+" else int(borrow > 0)
    return " ".join(steps)


def careful_answer(a: int, sign: str, b: int) -> str:
    """Worked and right, in the think-and-answer form."""
    return answer_form(worked(a, sign, b), str(result(a, sign, b)))


def careless_answer(a: int, sign: str, b: int, draw: random.Random) -> str:
    """A guess with about the right first digit; one in five forgets the form as well."""
    right = str(result(a, sign, b))
    guess = right[0] + "".join(draw.choice("0123456789") for _ in right[1:])
    return f"It is {guess}." if draw.random() < 0.2 else answer_form("easy", guess)


def answer_form(thought: str, answer: str) -> str:
    """The form that the rewards ask for by default."""
    return f"<think>{thought}</think>\n<answer>{answer}</answer>"
