"""Which generator takes how many tasks of a step, by hand-computed numbers."""

from hypothesis import given
from hypothesis import strategies as st

from unslothrl.training.rollouts import task_counts


def test_tasks_by_hand():
    # 30 prompts, learner takes 8, two actors share 22
    assert list(task_counts(30, 2, 1, 8)) == [11, 11, 8]
    # the remainder goes to the first
    assert list(task_counts(32, 3, 1, 8)) == [8, 8, 8, 8]
    assert list(task_counts(33, 3, 1, 8)) == [9, 8, 8, 8]
    # 0: the learner only trains
    assert list(task_counts(30, 2, 1, 0)) == [15, 15, 0]
    # fewer prompts than generators: actors first
    assert list(task_counts(2, 3, 1, 8)) == [1, 1, 0, 0]
    assert list(task_counts(4, 3, 1, 8)) == [1, 1, 1, 1]
    # no actors: learners take everything
    assert list(task_counts(31, 0, 2, 8)) == [16, 15]


@given(st.integers(1, 99), st.integers(0, 9), st.integers(1, 4), st.integers(0, 40))
def test_no_task_is_lost(total, actors, learners, chunk):
    counts = task_counts(total, actors, learners, chunk)
    assert sum(counts) == total
    assert len(counts) == actors + learners
    assert min(counts) >= 0
