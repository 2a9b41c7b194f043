"""Files without end and without sense where a command expects its input: refused within a second of
this process, and without memory for them."""

import contextlib
import gzip
import hashlib
import json
import os
import struct
import sys
import time
from pathlib import Path

import adapters
import mutated_files
import mutated_reading
import mutated_runs
import pytest

from unslothrl import cluster
from unslothrl.commands import answering, cli
from unslothrl.errors import RunError
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

pytestmark = [
    pytest.mark.real,  # the embedded base's tokenizer
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]
MOST_S, MOST_MB = 1.0, 150.0  # of CPU: other work on the machine does not count
ZEROS = 2 << 30  # bytes
TRAIN = [f"--{name}={value}" for name, value in mutated_files.mutations.VALID.items()]


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory):
    """Imports are paid for by the first of these."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "empty.jsonl").touch()
    run("--output_dir", folder, "--dataset", folder / "empty.jsonl")
    for words in (["ask", "x"], ["eval"], ["chat"], ["export", "--output", folder / "out"]):
        run(*words, "--adapter", folder)


@pytest.fixture(autouse=True)
def stops(monkeypatch, tmp_path):
    """No worker starts, and no model is loaded."""
    monkeypatch.chdir(tmp_path)

    def stop(*_):
        raise RunError("here a model would be loaded")

    monkeypatch.setattr(cluster, "start", stop)
    monkeypatch.setattr(answering, "load_engine", stop)
    yield
    for path in tmp_path.iterdir():  # Python's rmtree would not reach the bottom of `deep`
        mutated_files.mutations.clean(path)


def run(*words: object) -> int:
    trains = str(words[0]) in ("--adapter", "--dataset", "--recipe", "--output_dir")
    usual = [each for each in TRAIN if each.partition("=")[0] not in words]
    return cli.main([*(usual if trains else []), *map(str, words)])


@contextlib.contextmanager
def within_limits(most_s: float = MOST_S):
    mutated_reading.reset_peak()
    at_first, started = mutated_reading.peak_mb(), time.process_time()
    with mutated_reading.deadline():
        yield
    seconds, mb = time.process_time() - started, mutated_reading.peak_mb() - at_first
    assert seconds < most_s and mb < MOST_MB, (seconds, mb)


def refused(capsys, *words: object) -> str:
    """What the command says of it, in one line, at once and without memory for it."""
    capsys.readouterr()
    before = mutated_reading.listing(Path.cwd())
    with within_limits():
        code = run(*words)
    err = capsys.readouterr().err
    assert code == 2 and err.startswith("unslothrl: ") and err.count("\n") == 1, (code, err)
    after = mutated_reading.listing(Path.cwd())
    assert [*mutated_reading.changes(before, after, may_write=False)] == []
    return err


def zeros(path: Path, size: int = ZEROS) -> Path:
    """A file of so many zeros that takes no room."""
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, size)
    return path


def claims_100_gb(path: Path) -> Path:
    """A safetensors file whose header says that it is so long; so long is the file."""
    zeros(path, 10**11 + 8)
    with path.open("r+b") as file:
        file.write(struct.pack("<Q", 10**11) + b'{"a"')
    return path


def huge_tensor(path: Path) -> Path:
    """A whole safetensors file with a tensor of 2 GB of zeros."""
    text = json.dumps({"a": {"dtype": "F32", "shape": [ZEROS // 4], "data_offsets": [0, ZEROS]}})
    zeros(path, 8 + len(text) + ZEROS)
    with path.open("r+b") as file:
        file.write(struct.pack("<Q", len(text)) + text.encode())
    return path


def loop(path: Path) -> Path:
    """A link to a link to itself."""
    path.unlink(missing_ok=True)
    path.with_name("round").symlink_to(path)
    path.symlink_to(path.with_name("round"))
    return path


def link(target: str):
    def make(path: Path) -> Path:
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        return path

    return make


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def deep(path: Path) -> Path:
    """Folders in folders, further down than a path can say."""
    path.unlink(missing_ok=True)
    path.mkdir()
    here = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 9, dir_fd=here)
        inner = os.open("d" * 9, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    return path


ODD = {
    "zeros": zeros,
    "a loop": loop,
    "/dev/zero": link("/dev/zero"),
    "a pipe": pipe,
    "deep folders": deep,
}
odd = pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())


@pytest.mark.parametrize(
    "command", [["--adapter"], ["ask", "x", "--adapter"], ["chat", "--adapter"],
                ["eval", "--adapter"], ["export", "--output", "out", "--adapter"]],
    ids=lambda command: command[0].strip("-"),
)  # fmt: skip
def test_adapters(tmp_path, capsys, command):
    folder = adapters.write(tmp_path / "adapter")
    for file in (WEIGHTS_FILE, CONFIG_FILE):
        for make in (*ODD.values(), claims_100_gb, huge_tensor):
            if (folder / file).is_dir():
                emptied(folder)
            make(folder / file)
            assert str(folder) in refused(capsys, *command, folder)
        emptied(folder)
        adapters.write(folder)
    for make in ODD.values():
        assert "place" in refused(capsys, *command, make(tmp_path / f"place-{make.__name__}"))
        (tmp_path / "round").unlink(missing_ok=True)


def emptied(folder: Path) -> None:
    mutated_files.mutations.clean(folder)
    folder.mkdir()


ENDINGS = ("json", "csv", "arrow", "jsonl.gz")


@odd
@pytest.mark.parametrize(
    "ending", ["jsonl", "parquet", *(pytest.param(e, marks=pytest.mark.slow) for e in ENDINGS)]
)
def test_data_files(tmp_path, capsys, make, ending):
    path = make(tmp_path / f"problems.{ending}")
    assert "problems" in refused(capsys, "--dataset", path)
    assert "problems" in refused(capsys, "score", "--reward", "accuracy", path)


def test_what_unpacks_to_gigabytes(tmp_path, capsys):
    piece = gzip.compress(bytes(64 << 20))  # a thousandth of that
    (tmp_path / "problems.jsonl.gz").write_bytes(piece * 4)
    err = refused(capsys, "--dataset", tmp_path / "problems.jsonl.gz")
    assert "100 times its size" in err


def test_a_row_that_does_not_end_is_not_read_again_at_every_piece(tmp_path, capsys):
    (tmp_path / "problems.json").write_text('[{"problem": "' + "x" * (24 << 20))
    assert "is not JSON" in refused(capsys, "--dataset", tmp_path / "problems.json")


@odd
def test_recipes(tmp_path, capsys, make):
    assert "recipe.toml" in refused(capsys, "--recipe", make(tmp_path / "recipe.toml"))


@pytest.fixture
def a_run(tmp_path) -> Path:
    return mutated_runs.shutil.copytree(mutated_files.template(), tmp_path / "run")


FILES = ("config.toml", "metrics.jsonl", "run.json", "trackers.json", "summary.json")
ENDLESS = ("run.json", "trackers.json", "summary.json")  # what says no more of a run is passed over


@odd
@pytest.mark.parametrize("file", FILES)
def test_files_of_runs(tmp_path, capsys, a_run, make, file):
    path = make(a_run / file)
    if make is zeros and file in ENDLESS:
        with within_limits():
            mutated_reading.resume(mutated_files.Case("run", 0, a_run, tmp_path))
    else:
        assert file in refused(capsys, "--resume", a_run)
    report = ["report", a_run]
    if path.is_file() and file not in ("run.json", "trackers.json"):
        assert file in refused(capsys, *report)
    else:
        quickly(*report)
    quickly("report", tmp_path)


@odd
def test_bundles(tmp_path, a_run, make):
    for file in FILES[2:]:
        make(a_run / file)
        (a_run / "round").unlink(missing_ok=True)
    make(a_run / "rollouts" / "step_000004.jsonl")
    quickly("bundle", a_run, "--output", tmp_path / "x.tar.gz", "--with_rollouts", 9)


def quickly(*words: object) -> None:
    """It ends, with an answer or a line."""
    with within_limits(2 * MOST_S):  # `bundle` looks at the machine as well
        assert run(*words) in (0, 2)


@odd
@pytest.mark.parametrize("command", ["--resume", "report", "bundle"])
def test_what_is_no_run(tmp_path, capsys, make, command):
    assert "place" in refused(capsys, command, make(tmp_path / "place"))


@pytest.mark.parametrize("make", [*ODD.values(), claims_100_gb, huge_tensor])
@pytest.mark.parametrize(
    "file", ["learner.safetensors", "progress.json", "ahead.jsonl", "SHA256SUMS"]
)
def test_checkpoints(tmp_path, capsys, a_run, make, file):
    """Both of a run's: no other is left to go on from."""
    for name in ("step_000003", "step_000004"):
        make(a_run / "checkpoints" / name / file)
    assert file in refused(capsys, "--resume", a_run)


def test_a_checkpoint_whose_sums_fit(tmp_path, capsys, a_run):
    """Zeros, and what their SHA-256 is."""
    digest = hashlib.sha256()
    for _ in range(64):
        digest.update(bytes(1 << 20))
    for name in ("step_000003", "step_000004"):
        folder = a_run / "checkpoints" / name
        zeros(folder / "learner.safetensors", 64 << 20)
        _, *kept = (folder / "SHA256SUMS").read_text().splitlines()
        sums = "\n".join([f"{digest.hexdigest()}  learner.safetensors", *kept])
        (folder / "SHA256SUMS").write_text(sums)
    assert "learner.safetensors is no file of a learner's" in refused(capsys, "--resume", a_run)
