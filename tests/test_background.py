"""What the loop does not wait for: in order, once, and never lost."""

import threading

import pytest

from unslothrl.background import MOST_WAITING, Background, DrawnAhead

WAIT_S = 60.0


def test_calls_run_in_order_while_the_caller_goes_on():
    background, gate, done = Background(), threading.Event(), []
    background.run(gate.wait, WAIT_S)
    for number in range(MOST_WAITING - 1):
        background.run(done.append, number)
    assert done == []  # the first is still waiting, and this line was reached
    gate.set()
    background.wait()
    assert done == list(range(MOST_WAITING - 1))


def test_an_error_is_raised_and_what_came_after_it_is_done():
    background, gate, done = Background(), threading.Event(), []
    background.run(gate.wait, WAIT_S)
    background.run(int, "x")
    background.run(done.append, 1)
    gate.set()
    with pytest.raises(ValueError, match="invalid literal"):
        background.wait()
    background.wait()
    assert done == [1]


class Source:
    def __init__(self):
        self.drawn: list[tuple[int, int]] = []
        self.second = threading.Event()

    def draw(self, position, count):
        self.drawn.append((position, count))
        if len(self.drawn) == 2:
            self.second.set()
        return [f"task {position + i}" for i in range(count)], position + count


def test_the_next_tasks_are_drawn_ahead():
    source = Source()
    tasks = DrawnAhead(source)
    assert tasks.draw(0, 2) == (["task 0", "task 1"], 2)
    assert source.second.wait(WAIT_S)  # without being asked
    assert source.drawn == [(0, 2), (2, 2)]
    assert tasks.draw(2, 2) == (["task 2", "task 3"], 4)
    assert tasks.draw(4, 1) == (["task 4"], 5)  # another number than was foreseen
    assert tasks.draw(0, 1) == (["task 0"], 1)  # a resumed run starts elsewhere


def test_a_source_that_fails_says_so_when_it_is_asked():
    class Broken(Source):
        def draw(self, position, count):
            if position:
                raise ValueError("no more")
            return super().draw(position, count)

    tasks = DrawnAhead(Broken())
    tasks.draw(0, 2)
    with pytest.raises(ValueError, match="no more"):
        tasks.draw(2, 2)
