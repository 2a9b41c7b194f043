"""A version's files on a node: written once, there as long as a process uses them, then gone."""

import os
import signal
import threading
from pathlib import Path

import pytest

from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter
from unslothrl.weights.node_files import NodeFiles


def version(number: int, size: int = 1000, config: str = '{"r": 8}') -> Adapter:
    return Adapter.of(number, bytes([number]) * size, config)


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


def test_a_version_is_written_once_and_removed_by_the_last(files, room):
    first, second = [each.hold(version(3)) for each in files]
    weights = [each / WEIGHTS_FILE for each in (first, second)]
    assert weights[0].samefile(weights[1])
    assert (first / CONFIG_FILE).read_text() == '{"r": 8}'
    files[0].release(files[0].hold(version(3)))
    files[0].release(first)
    assert weights[1].read_bytes() == b"\x03" * 1000
    files[1].release(second)
    assert names(room) == set()


def test_another_content_under_the_same_number_is_another_folder(files):
    versions = version(3), version(3, size=999), version(3, config='{"r": 4}')
    assert len({files[0].hold(each) for each in versions}) == 3


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

    def hold_two():
        own = NodeFiles(room)
        for number in (1, 2):
            own.hold(version(number))

    killed(hold_two)
    assert len(names(room)) == 3
    NodeFiles(room).close()
    assert names(room) == {mine.name}
    assert (mine / WEIGHTS_FILE).read_bytes() == b"\x01" * 1000


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_half(files, room, monkeypatch):
    def half(self, target):
        os.kill(os.getpid(), signal.SIGKILL)

    def write():
        monkeypatch.setattr(Path, "rename", half)
        NodeFiles(room).hold(version(1))

    killed(write)
    held = files[0].hold(version(1))
    assert (held / WEIGHTS_FILE).read_bytes() == b"\x01" * 1000
    files[0].release(held)
    NodeFiles(room).close()
    assert names(room) == set()


def test_a_write_that_fails_leaves_nothing(files, room, monkeypatch):
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        files[0].hold(version(1))
    monkeypatch.undo()
    assert names(room) == set()
    files[0].hold(version(1))


@pytest.mark.real
def test_nobody_loses_what_it_holds_while_others_come_and_go(room):
    """Six at once, each of which holds, reads and releases versions that the others use too."""
    failed: list[BaseException] = []

    def use(offset: int) -> None:
        try:
            files = NodeFiles(room)
            for turn in range(40):
                held = files.hold(version((turn + offset) % 3, size=20_000))
                content = (held / WEIGHTS_FILE).read_bytes()
                assert content == bytes([(turn + offset) % 3]) * 20_000
                assert (held / CONFIG_FILE).exists()
                files.release(held)
            files.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert not room.exists()


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


def test_a_folder_that_somebody_has_damaged_is_no_longer_whole(files):
    held = files[0].hold(version(1))
    assert files[0].is_whole(held, version(1)) and not files[0].is_whole(held, version(2))
    (held / WEIGHTS_FILE).write_bytes(b"\x01" * 999 + b"\x00")
    assert not files[0].is_whole(held, version(1))
    own = files[0].hold(version(1), is_own=True)
    assert own != held and files[0].is_whole(own, version(1))
    (held / WEIGHTS_FILE).unlink()
    assert not files[0].is_whole(held, version(1))
    files[0].release(held)
    files[0].release(own)
