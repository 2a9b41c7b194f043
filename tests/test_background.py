"""What the loop and an actor do not wait for: in order, once, and never lost."""

import threading

import pytest

from unslothrl.actors.scoring import BackgroundScoring
from unslothrl.training.saving import MOST_WAITING, Saving

WAIT_S = 60.0


def test_calls_run_in_order_while_the_caller_goes_on_and_after_an_error():
    saving, gate, done = Saving(None), threading.Event(), []
    saving.run(gate.wait, WAIT_S)
    saving.run(int, "x")
    for number in range(MOST_WAITING - 2):
        saving.run(done.append, number)
    assert done == []  # the first is still waiting, and this line was reached
    gate.set()
    with pytest.raises(ValueError, match="invalid literal"):
        saving.wait()
    saving.wait()
    assert done == list(range(MOST_WAITING - 2))


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
