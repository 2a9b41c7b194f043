"""A version's files: there as long as a process uses them, then gone."""

import os
import signal
from pathlib import Path

import pytest

from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter, NodeFiles


def version(number: int) -> Adapter:
    return Adapter.of(number, bytes([number]) * 1000, '{"r": 8}')


@pytest.fixture
def room(tmp_path) -> Path:
    return tmp_path / "unslothrl-1-a"


@pytest.fixture
def files(room):
    """As two processes have them: the kernel locks for each opening of a file."""
    both = NodeFiles(room), NodeFiles(room)
    yield both
    for each in both:
        each.close()


def names(room: Path) -> set[str]:
    return {path.name for path in room.glob("adapters-*/*")}


def test_a_version_is_there_until_it_is_released(files, room):
    first, second = [each.hold(version(3)) for each in files]
    assert (first / CONFIG_FILE).read_text() == '{"r": 8}'
    for held in (first, files[0].hold(version(3))):
        files[0].release(held)
    assert (second / WEIGHTS_FILE).read_bytes() == b"\x03" * 1000
    files[1].release(second)
    assert names(room) == set()


def killed(act) -> None:
    """A process that does `act`, and is killed then."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_what_a_killed_process_held_is_removed_by_the_next_to_come(files, room):
    mine = files[0].hold(version(1))
    killed(lambda: list(map(NodeFiles(room).hold, (version(1), version(2)))))
    assert len(names(room)) == 3
    NodeFiles(room).close()
    assert names(room) == {mine.name}
    assert (mine / WEIGHTS_FILE).read_bytes() == b"\x01" * 1000


def test_a_room_that_no_process_uses_is_removed_with_the_next_run(tmp_path):
    used = NodeFiles(tmp_path / "unslothrl-1-a")
    mine = used.hold(version(1))
    killed(lambda: NodeFiles(tmp_path / "unslothrl-2-b").hold(version(1)))
    (tmp_path / "unslothrl-3-starting").mkdir()
    assert (tmp_path / "unslothrl-2-b").exists()
    NodeFiles(tmp_path / "unslothrl-4-d").close()
    assert {path.name for path in tmp_path.iterdir()} == {"unslothrl-1-a", "unslothrl-3-starting"}
    assert mine.exists()
    used.close()
