"""What the loop and an actor do not wait for: in order, once, and never lost."""

import os
import signal
import threading

import pytest

from unslothrl.actors.scoring import BackgroundScoring
from unslothrl.training.group_source import PrefetchedTasks
from unslothrl.training.saving import MOST_WAITING, Background

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

    def draw(self, position, count, between):
        between()
        self.drawn.append((position, count))
        if len(self.drawn) == 2:
            self.second.set()
        return [f"task {position + i}" for i in range(count)], position + count


def test_the_next_tasks_are_drawn_ahead():
    source = Source()
    tasks = PrefetchedTasks(source)
    assert tasks.draw(0, 2) == (["task 0", "task 1"], 2)
    assert source.second.wait(WAIT_S)  # without being asked
    assert source.drawn == [(0, 2), (2, 2)]
    assert tasks.draw(2, 2) == (["task 2", "task 3"], 4)
    assert tasks.draw(4, 1) == (["task 4"], 5)  # another number than was foreseen
    assert tasks.draw(0, 1) == (["task 0"], 1)  # a resumed run starts elsewhere


def test_a_source_that_fails_says_so_when_it_is_asked():
    class Broken(Source):
        def draw(self, position, count, between):
            if position:
                raise ValueError("no more")
            return super().draw(position, count, between)

    tasks = PrefetchedTasks(Broken())
    tasks.draw(0, 2)
    with pytest.raises(ValueError, match="no more"):
        tasks.draw(2, 2)


def test_nothing_is_drawn_ahead_of_the_last_step():
    source = Source()
    tasks = PrefetchedTasks(source)
    assert tasks.draw(0, 2, is_last=True) == (["task 0", "task 1"], 2)
    tasks.close()
    tasks.thread.shutdown(wait=True)
    assert source.drawn == [(0, 2)]


@pytest.mark.real
def test_the_first_ctrl_c_ends_a_draw_without_end():
    from unslothrl import embedded
    from unslothrl.cluster.build import data_options
    from unslothrl.config.options import Config
    from unslothrl.data import tasks
    from unslothrl.weights import base_model

    config = Config(model="embedded", dataset="embedded", eval_problems=1)
    data = tasks.load(data_options(config), base_model.load_tokenizer(embedded.BASE))
    drawing = PrefetchedTasks(data.train)
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        drawing.draw(0, 10**9)
    drawing.close()
    drawing.thread.shutdown(wait=True)  # it has ended, or this would never return


def doubled(work):
    return [2 * item for item in work]


def test_what_was_added_is_scored():
    scoring = BackgroundScoring(doubled, at_the_end=False)
    for item in (1, 2, 3):
        scoring.add(item)
    scoring.finish()
    assert sorted(scoring.take()) == [2, 4, 6] and scoring.take() == []
    scoring.add(4)
    scoring.finish()
    assert scoring.take() == [8]
    scoring.close()


def test_what_waits_meanwhile_goes_into_one_call():
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def score(work):
        calls.append(list(work))
        begun.set()
        assert go_on.wait(WAIT_S)
        return list(work)

    scoring = BackgroundScoring(score, at_the_end=False)
    scoring.add(1)
    assert begun.wait(WAIT_S)
    scoring.add(2)
    scoring.add(3)
    go_on.set()
    scoring.finish()
    assert calls == [[1], [2, 3]] and scoring.take() == [1, 2, 3]
    scoring.close()


def test_at_the_end_nothing_is_scored_before_finish():
    calls = []
    scoring = BackgroundScoring(lambda work: calls.append(list(work)) or work, at_the_end=True)
    for item in range(5):
        scoring.add(item)
        assert scoring.take() == []
    scoring.finish()
    assert calls == [[0, 1, 2, 3, 4]] and scoring.take() == [0, 1, 2, 3, 4]
    scoring.close()


def test_an_error_comes_out_of_the_next_take():
    def broken(work):
        raise ValueError("broken")

    scoring = BackgroundScoring(broken, at_the_end=False)
    scoring.add(1)
    scoring.finish()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            scoring.take()
    scoring.close()
