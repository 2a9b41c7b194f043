"""Products of two numbers, which a small policy cannot compute, and a calculator that can.

    user       What is 37 * 46?
    assistant  <think>37 46=</think>
    user       = 1702
    assistant  <answer>1702</answer>

An expression that ends with its equals sign asks the calculator; a space stands for times, since
the embedded base has never written an asterisk. The policy may also answer at once. With `swapped`,
for a control experiment, the calculator gives the result of another episode's question: whoever
uses it is wrong.
"""

import operator
import random
import re

from unslothrl.environments.base import Action, Step, Task

ASKED = re.compile(r"(\d{1,9}) ?([ +*-]) ?(\d{1,9}) ?=(?! ?\d)")
ANSWERED = re.compile(r"<answer>(-?\d{1,20})</answer>")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, " ": operator.mul}


class Calculator:
    """`low` and `high` bound both numbers."""

    max_turns = 2

    def __init__(self, low: int = 10, high: int = 99, swapped: bool = False):
        self.low, self.high, self.swapped = low, high, swapped

    def reset(self, task: Task, seed: int) -> str:
        self.draw = random.Random(seed)
        self.left, self.right = self.numbers()
        return question(self.left, self.right)

    def numbers(self) -> tuple[int, int]:
        return self.draw.randint(self.low, self.high), self.draw.randint(self.low, self.high)

    async def step(self, action: Action) -> Step:
        asked = ASKED.search(action)
        if asked is not None:
            left, sign, right = asked.groups()
            result = OPERATIONS[sign](int(left), int(right))
            if self.swapped:
                left_of_another, right_of_another = self.numbers()
                result = left_of_another * right_of_another
            return Step(False, result_of(result))
        answered = ANSWERED.search(action)
        right = answered is not None and int(answered[1]) == self.left * self.right
        return Step(True, reward=float(right), score=float(right))


def question(left: int, right: int) -> str:
    return f"What is {left} * {right}?"


def result_of(value: int) -> str:
    return f"= {value}"


ENVIRONMENT = Calculator
