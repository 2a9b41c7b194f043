"""A run's folder copied to a mirror: processes are killed, targets fail or hang."""

import itertools
import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from few_cases import few
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from unslothrl.checkpoints.store import Checkpoints, RunState
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.mirror import fetching, mirror
from unslothrl.mirror.fetching import Target
from unslothrl.mirror.mirror import Mirror, Sender
from unslothrl.system import stopping
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.weights.starting_adapter import START

START_FILES = ("adapter_config.json", "adapter_model.safetensors")


class Watched(LocalFileSystem):
    """A folder that keeps what is written into it, and calls `before` an operation."""

    cachable = False
    before = staticmethod(lambda: None)

    def __init__(self):
        super().__init__()
        self.written: list[str] = []

    def put_file(self, lpath, rpath, **keywords):
        self.before()
        value = Path(lpath).read_bytes()
        Path(rpath).write_bytes(value[: len(value) // 2])
        self.before()  # half of it has arrived
        Path(rpath).write_bytes(value)
        self.written.append(Path(rpath).name.removeprefix(".").removesuffix(".part"))

    def mv(self, path1, path2, **keywords):
        self.before()
        super().mv(path1, path2)

    def rm(self, path, **keywords):
        self.before()
        super().rm(path, **keywords)


def watched(root: Path) -> Target:
    return Target(Watched(), str(root), str(root))


def make_run(folder: Path, steps: int = 0, keep: int = 2) -> RunFolder:
    run = RunFolder.create(folder.parent, folder.name, "seed = 1\n")
    origin.record(run.path, recipe={"seed": 1})
    run.checkpoints.keep = keep
    for step in range(1, steps + 1):
        add_step(run, step)
    return run


def add_step(run: RunFolder, step: int) -> None:
    """As the loop does: rollouts, a checkpoint before the evaluation, metrics, it again."""
    run.write_rows("rollouts", step, [{"step": step}])
    learner = bytes([step]) * 100
    state = RunState(step=step, unlogged={"step": step})
    run.checkpoints.write(state, learner)
    run.saved()
    run.log({"step": step})
    run.checkpoints.write(replace(state, unlogged=None), learner, is_best=step == 1)
    run.saved()


def tree(folder: Path) -> dict[str, bytes]:
    """Everything but what is never sent."""
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if "/." not in f"/{name}"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    run = make_run(tmp_path_factory.mktemp("made") / "one", steps=3)
    run.close()
    return run.path


@pytest.fixture
def run(made, tmp_path) -> RunFolder:
    return RunFolder(shutil.copytree(made, tmp_path / "runs" / "one"))


def test_a_folder_gets_everything_but_locks_links_and_temporary_names(run, tmp_path):
    (run.path / ".config.toml.123").write_text("half")
    (run.path / "link").symlink_to("/etc/passwd")
    Sender(run.path, watched(tmp_path / "there")).send()
    (run.path / "link").unlink()
    assert tree(tmp_path / "there") == tree(run.path)
    assert [path.name for path in (tmp_path / "there").rglob(".*")] == []
    assert Checkpoints(tmp_path / "there").steps() == [1, 2, 3]  # the best, and the two newest
    assert sorted(path.name for path in (run.path / ".mirror").iterdir()) == ["sent.json"]


def test_only_what_changed_is_sent_again(run, tmp_path):
    target = watched(tmp_path / "there")
    sender = Sender(run.path, target)
    sender.send()
    target.fs.written.clear()
    sender.send()
    run.log({"step": 4})
    sender.send()
    assert target.fs.written == ["metrics.jsonl"]
    target.fs.written.clear()
    (tmp_path / "there" / "run.json").write_text("cut")
    Sender(run.path, target).send()  # another process
    assert target.fs.written == ["run.json"]
    assert tree(tmp_path / "there") == tree(run.path)


def test_what_the_run_deletes_meanwhile_still_arrives(run, tmp_path):
    target = watched(tmp_path / "there")

    def delete():
        target.fs.before = lambda: None
        for step in (1, 2, 3):
            for path in (run.checkpoints.folder / f"step_{step:06d}").iterdir():
                path.unlink()

    target.fs.before = delete
    Sender(run.path, target).send()
    assert Checkpoints(tmp_path / "there").newest().state.step == 3


def test_the_mirror_keeps_two_checkpoints_where_the_run_keeps_one(tmp_path):
    run = make_run(tmp_path / "runs" / "one", keep=1)
    sender = Sender(run.path, watched(tmp_path / "there"))
    for step in (1, 2, 3):
        run.checkpoints.write(RunState(step=step), b"")
        sender.send()
    assert (run.checkpoints.steps(), Checkpoints(tmp_path / "there").steps()) == ([3], [2, 3])
    assert (tmp_path / "there/checkpoints/latest").read_text() == "step_000003\n"
    run.close()


def test_what_a_resumed_run_has_given_up_goes_before_its_metrics_are_replaced(run, tmp_path):
    target = watched(tmp_path / "there")
    run.write_summary({"status": "finished"})
    Sender(run.path, target).send()
    run.truncate_after(2, 2, 2)

    def killed():
        if target.fs.written[-1:] == ["metrics.jsonl"]:
            raise InterruptedError

    target.fs.before = killed
    target.fs.written.clear()
    with pytest.raises(InterruptedError):
        Sender(run.path, target).send()
    assert Checkpoints(tmp_path / "there").newest().state.step == 2
    assert not (tmp_path / "there" / "summary.json").exists()


@pytest.mark.real
@pytest.mark.parametrize("every", few([7, 1]))
def test_whenever_a_copy_is_killed_the_mirror_is_whole(tmp_path, every):
    """A process is killed before operations of a copy and within files: all of them, or some."""
    for kills in itertools.count(0, every):
        folder, there = tmp_path / f"runs{kills}" / "one", tmp_path / f"there{kills}"
        if not copied_until_killed(folder, there, kills):
            break
        check_whole(there)
        Sender(folder, watched(there)).send()
        assert tree(there).keys() - spare(there) == tree(folder).keys()
    assert kills > 60


def copied_until_killed(folder: Path, there: Path, operations: int) -> bool:
    """Whether the process was killed: False where it ended before that many operations."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    target, left = watched(there), operations

    def count():
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    target.fs.before = count
    run = make_run(folder, keep=1)
    (folder / START).mkdir()
    for name in START_FILES:
        (folder / START / name).write_text(name)
    run.saved = Sender(folder, target).send
    for step in (1, 2, 3):
        add_step(run, step)
    os._exit(0)


def spare(there: Path) -> set[str]:
    """Files of the checkpoint that only the mirror keeps."""
    kept = [f"checkpoints/step_{step:06d}/" for step in Checkpoints(there).steps()[1:-1]]
    return {name for name in tree(there) if name.startswith(tuple(kept))}


def check_whole(there: Path) -> None:
    if (there / "config.toml").exists():  # it is a run, which begins with an adapter
        assert [(there / START / name).read_text() for name in START_FILES] == [*START_FILES]
    found = Checkpoints(there).newest()
    if found is None:
        assert not (there / "checkpoints" / "step_000002").exists()  # the first is being written
        return
    step = found.state.step
    logged = step if found.state.unlogged is None else step - 1
    latest = there / "checkpoints" / "latest"
    named = latest.read_text() if latest.exists() else "step_000000"
    assert int(named.removeprefix("step_")) in (step - 1, step, step + 1)
    assert set(range(1, logged + 1)) <= {row["step"] for row in RunFolder(there).read_metrics()}
    assert set(range(1, step + 1)) <= set(RunFolder(there).steps_of("rollouts"))


class Failing(MemoryFileSystem):
    cachable = False
    fails = True

    def __init__(self):
        super().__init__()
        self.store, self.pseudo_dirs = {}, [""]

    def put_file(self, lpath, rpath, **keywords):
        if self.fails:
            raise ConnectionError("https://key:secret@host/x?token=abc refused")
        super().put_file(lpath, rpath, **keywords)


def test_a_target_that_fails_costs_one_note_until_it_works_again(run):
    fs, notes = Failing(), []
    copies = Mirror(Target(fs, "/there", "memory://there"), run.path, notes.append)
    for _ in range(2):
        send(copies)
    (note,) = notes
    assert note.startswith("mirror memory://there: ConnectionError") and "the run continues" in note
    assert "secret" not in note and "abc" not in note
    fs.fails = False
    send(copies)
    assert notes[1:] == ["mirror memory://there: it is complete again"]
    assert fs.cat_file("/there/checkpoints/latest") == b"step_000003\n"
    run.log({"step": 4})
    fs.fails = True
    copies.close(5)
    assert "ConnectionError" in notes[-1] and f"--resume {run.path}" in notes[-1]


def send(copies: Mirror) -> None:
    copies.update()
    wait(copies)


def wait(copies: Mirror) -> None:
    copies.thread.join(20)
    assert not copies.thread.is_alive()


def test_a_mirror_that_was_deleted_is_made_again(run, tmp_path):
    notes: list[str] = []
    copies = Mirror(watched(tmp_path / "there"), run.path, notes.append)
    send(copies)
    shutil.rmtree(tmp_path / "there")
    run.log({"step": 4})
    send(copies)
    assert notes == []
    assert tree(tmp_path / "there") == tree(run.path)


@pytest.mark.parametrize(("ends", "most_s"), [("a signal", 3600), ("time", 0.05)])
def test_one_that_hangs_delays_nothing_and_is_left_behind(run, tmp_path, monkeypatch, ends, most_s):
    """At the end of a run it is waited for, until the time for that is over or a SIGTERM comes."""
    monkeypatch.setattr(stopping, "_stops", stopping.Stops())
    monkeypatch.setattr(mirror, "WAKE_S", 0.01)
    stopping.begin()
    target, notes, go_on = watched(tmp_path / "there"), [], threading.Event()
    target.fs.before = go_on.wait
    copies = Mirror(target, run.path, notes.append)
    for _ in range(3):
        copies.update()
    assert copies.thread.is_alive() and not go_on.is_set()  # it has returned all the same
    if ends == "a signal":
        threading.Timer(0.1, stopping._stops.ask, [signal.SIGTERM]).start()
    copies.close(most_s)
    assert "sends the rest" in notes[0]
    go_on.set()
    wait(copies)
    assert len(notes) == 1


def test_one_that_hangs_is_told_of_while_the_run_goes_on(run, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "LATE_S", 0.0)
    target, notes, go_on = watched(tmp_path / "there"), [], threading.Event()
    target.fs.before = go_on.wait
    copies = Mirror(target, run.path, notes.append)
    for _ in range(3):
        copies.update()
    (note,) = notes
    assert "a copy has not ended" in note and "the run continues" in note
    go_on.set()
    wait(copies)
    assert notes[1:] == [f"mirror {tmp_path}/there: it is complete again"]


def config_of(folder: RunFolder, place: object) -> Config:
    return Config(mirror=str(place), output_dir=str(folder.path.parent), run_name=folder.path.name)


def test_a_target_is_tried_before_anything_is_started(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"mirror .*/file/below cannot be reached \(NotADirectory"):
        mirror.of_run(config_of(run, tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="s3fs"):
        mirror.of_run(config_of(run, "s3://bucket/x"))
    there = tmp_path / "there"
    assert mirror.of_run(config_of(run, there)).url == f"{there}/one"
    assert list(there.iterdir()) == []


def test_another_run_or_one_that_is_further_is_not_overwritten(run, tmp_path):
    other = RunFolder(shutil.copytree(run.path, tmp_path / "other" / "one"))
    Sender(run.path, watched(tmp_path / "there" / "one")).send()
    origin.write(other.path, replace(origin.read(other.path), started="2020-01-01 00:00"))
    with pytest.raises(UserError, match="holds another run: set another --run_name, or continue"):
        mirror.of_run(config_of(other, tmp_path / "there"))
    assert mirror.of_run(config_of(run, tmp_path / "there")).url == f"{tmp_path}/there/one"
    run.truncate_after(2, 2, 2)
    with pytest.raises(UserError, match=r"is at step_000003, and .* at step_000002: continue"):
        mirror.of_run(config_of(run, tmp_path / "there"))


@pytest.mark.parametrize("lacks", ["SHA256SUMS", "progress.json"])
def test_a_checkpoint_that_has_not_arrived_whole_stops_no_other_machine(run, tmp_path, lacks):
    """The machine has vanished while one was sent, or sent again after an evaluation."""
    there = tmp_path / "there"
    Sender(run.path, watched(there / "one")).send()
    for name in {"SHA256SUMS", lacks}:  # the former is the last to come
        (there / "one" / "checkpoints" / "step_000003" / name).unlink()
    folder = fetching.fetch(f"{there}/one", str(tmp_path / "new"), note=lambda line: None)
    assert Checkpoints(folder).steps() == [1, 2]
    Sender(folder, mirror.of_run(config_of(RunFolder(folder), there))).send()
    assert Checkpoints(there / "one").steps() == [1, 2]


@pytest.mark.parametrize(
    "place", ["{runs}", "{runs}/one", "{runs}/one/below", "file://{runs}", "..", "{runs}/two"]
)
def test_a_run_is_not_copied_into_itself_or_another(run, place, monkeypatch):
    monkeypatch.chdir(run.path.parent)
    (run.path.parent / "two").mkdir()
    (run.path.parent / "two" / "config.toml").write_text("")
    with pytest.raises(UserError, match="set --mirror to another folder"):
        mirror.of_run(config_of(run, place.format(runs=run.path.parent)))


@pytest.mark.parametrize("url", ["sftp://me@host:22/x", "s3://bucket/a@b", "file:///a#b"])
def test_a_url_without_one_stays_as_it_is(url):
    assert fetching.canonical("mirror", url + "/") == url
