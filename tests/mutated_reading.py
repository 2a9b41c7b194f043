"""What the commands do with a case of `mutated_files`, up to where a model would be loaded, and
whether that was right.

Right is a valid load, or one line that names what is wrong, within `MOST_S` and `MOST_MB`, without
a warning, and with every file as it was. What a link leads to outside of the case's files is never
changed at all.
"""

import contextlib
import hashlib
import io
import os
import random
import signal
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mutations
from mutated_files import Case
from mutated_runs import MACHINE, OUTSIDE, SPARSE, learner
from rich.console import Console

from unslothrl import embedded
from unslothrl.build import data_options
from unslothrl.bundle import texts, write
from unslothrl.checkpoints import learner_state
from unslothrl.checkpoints.run_state import RunState
from unslothrl.checkpoints.store import Checkpoint, Checkpoints
from unslothrl.commands import adapters, answering, export, report
from unslothrl.commands import data as data_command
from unslothrl.commands import eval as evaluation
from unslothrl.commands import score as scoring
from unslothrl.commands.messages import one_line
from unslothrl.config.options import OPTIONS
from unslothrl.config.reading import read_toml
from unslothrl.config.writing import to_toml
from unslothrl.data import fingerprint, tasks
from unslothrl.earlier_run import EarlierRun
from unslothrl.errors import UserError
from unslothrl.mirror import fetching
from unslothrl.resolve import resolve
from unslothrl.resuming import newest
from unslothrl.tracking import card, trackers
from unslothrl.tracking.run_folder import LOCK
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.boundary import Boundary, best
from unslothrl.weights import adapter_check, adapter_use, base_model

MOST_S, MOST_MB = 5.0, 512.0  # seconds of CPU
HANGS_S = 30  # seconds by the clock
LONGEST = 1000  # characters of a message
Way = Callable[[Case], object]


class Hangs(BaseException):
    """Raised in the middle of whatever waits for ever."""


@cache
def tokenizer():
    return base_model.load_tokenizer(embedded.BASE)


# What the commands call


def train_recipe(case: Case) -> None:
    resolved = resolve({"recipe": str(case.path), "output_dir": str(case.folder / "runs")}, MACHINE)
    file = case.folder / "again.toml"
    file.write_text(to_toml(resolved.config))
    again = read_toml(file)
    file.unlink()
    assert all(again.get(name) == getattr(resolved.config, name) for name in again)


def config_of_data(case: Case, **options: object):
    flags = {"model": "embedded", "output_dir": str(case.folder / "runs"), **options}
    return resolve(flags, MACHINE).config


def train_data(case: Case) -> None:
    config = config_of_data(case, dataset=str(case.path))
    data = tasks.load(data_options(config), tokenizer())
    fingerprint.of(data)
    data.train.draw(0, 4)


def train_slice(case: Case) -> None:
    config = config_of_data(case, dataset=f"{case.path}[:5]", eval_dataset=(f"x={case.path}",))
    fingerprint.of(tasks.load(data_options(config), tokenizer()))


def show_data(case: Case) -> None:
    out = io.StringIO()
    data_command.describe(config_of_data(case, dataset=str(case.path)), False, out)
    assert all(c.isprintable() or c in "\n\t" for c in out.getvalue())


def score_data(case: Case) -> None:
    scoring.score(str(case.path), ("accuracy",), 1.0, out=io.StringIO(), err=io.StringIO())


def train_adapter(case: Case) -> None:
    flags = {**mutations.VALID, "output_dir": str(case.folder / "runs"), "adapter": str(case.path)}
    config = resolve(flags, MACHINE).config
    adapter_check.check(config.adapter, embedded.BASE)


def ask_adapter(case: Case) -> None:
    found = adapters.find(str(case.path))
    use = adapter_use.read(found.folder) or answering.assumed_use(str(found.folder), None)
    adapter_check.check(str(found.folder), base_model.find(use.base, weights=False))


def eval_adapter(case: Case) -> None:
    found = adapters.find(str(case.path))
    evaluation.written_to(found, None)
    evaluation.config_of(found, ("embedded",), {"engine": "transformers", "cluster": "local"})
    adapter_check.check(str(found.folder), embedded.BASE)
    evaluation.read_adapter(found.folder)


def export_adapter(case: Case) -> None:
    found = adapters.find(str(case.path))
    use = adapter_use.read(found.folder)
    name = adapters.base_of(found, None)
    base = base_model.find(name, weights=False)
    adapter_check.check(str(found.folder), base)
    source = export.Source(found, use, name, base)
    with contextlib.ExitStack() as stack:
        folder, shown = stack.enter_context(export.folder_for(case.folder / "exported"))
        export.write_adapter(source, folder, shown)
        text = card.card(found.title, use, name, card.history(found.run))
        (folder / "README.md").write_text(text, encoding="utf-8")
    mutations.clean(case.folder / "exported")


class Resumed:
    """What `EarlierRun.go_on` needs of a trainer, with a learner in small."""

    def __init__(self):
        self.first, self.state = RunState(), RunState()

    def restore(self, checkpoint: Checkpoint, is_changed: bool) -> None:
        trained, optimizers = learner(1)
        learner_state.load(trained, optimizers, checkpoint.learner())
        self.state = checkpoint.state
        Boundary.of(self.state, bytes)
        if self.state.evals:
            best(self.state.evals)

    @property
    def logged(self) -> int:
        return self.state.step - (self.state.unlogged is not None)


def resume(case: Case) -> None:
    config = resolve({"resume": str(case.path)}, MACHINE).config
    view = Terminal(console=Console(file=io.StringIO()), live=False)
    with contextlib.ExitStack() as at_end:
        earlier = EarlierRun.reopen(config, at_end)
        if earlier.has_finished(config):
            earlier.show(view)
            return
        earlier.check_data({"train": "problems without end"}, config.dataset)
        earlier.go_on(Resumed(), config, view)
        earlier.folder.log({"step": earlier.state.step + 1})
        trackers.run_ids(earlier.folder.path, ["tensorboard"])
    rows = earlier.folder.read_metrics()
    assert rows[-1] == {"step": earlier.state.step + 1}
    kept = Checkpoints(case.path)
    kept.write(RunState(step=earlier.state.step + 1), b"")
    assert kept.steps()[-1] == earlier.state.step + 1


def resume_auto(case: Case) -> None:
    newest({"model": "embedded"}, str(case.path.parent), [])


def fetch(case: Case) -> None:
    there = case.folder / "there"
    if any(path.is_file() and path.lstat().st_size >= SPARSE for path in case.path.rglob("*")):
        return  # what fits on the disk is fetched, gigabytes of zeros too
    try:
        folder = fetching.fetch(f"file://{case.path}", str(there), lambda line: None)
        assert not any(path.is_symlink() for path in folder.rglob("*"))
    finally:
        assert not list(there.glob(".*"))
        mutations.clean(there)


def report_run(case: Case) -> None:
    report.report([str(case.path)], out=io.StringIO())


def compare_runs(case: Case) -> None:
    output = case.folder / "both.html"
    both = [str(case.path), str(mutated_template())]
    report.report(both, output=str(output), out=io.StringIO())
    output.unlink()


def list_runs(case: Case) -> None:
    out = io.StringIO()
    report.report([str(case.folder)], out=out)
    assert all(line.isprintable() for line in out.getvalue().splitlines())


def bundle_run(case: Case) -> None:
    archive = case.folder / "x.tar.gz"
    write(archive, "x", texts(case.path, (), 5))
    archive.unlink()


def eval_run(case: Case) -> None:
    found = adapters.find(str(case.path))
    evaluation.written_to(found, None)
    evaluation.config_of(found, (), {"engine": "transformers", "cluster": "local"})
    adapter_check.check(str(found.folder), embedded.BASE)
    evaluation.read_adapter(found.folder)


@cache
def mutated_template() -> Path:
    import shutil
    import tempfile

    from mutated_files import template

    return Path(shutil.copytree(template(), Path(tempfile.mkdtemp(prefix="mutated-")) / "other"))


WAYS: dict[str, tuple[Way, ...]] = {
    "recipe": (train_recipe,),
    "data": (train_data, train_data, train_slice, show_data, score_data),
    "adapter": (train_adapter, ask_adapter, eval_adapter, export_adapter),
    "checkpoint": (resume, resume, resume, fetch),
    "run": (resume, resume, resume, report_run, report_run, compare_runs, list_runs, bundle_run,
            eval_run, export_adapter, ask_adapter, fetch, resume_auto),
}  # fmt: skip
MAY_WRITE = {"resume", "report_run", "compare_runs"}  # where the case is accepted


# Whether it was right


@dataclass(frozen=True)
class Verdict:
    kind: str
    number: int
    way: str
    ended: str  # refused, accepted or wrong
    seconds: float  # of CPU
    mb: float
    message: str = ""


def examine(case: Case) -> Verdict:
    """Reads the case in one way, which its number decides."""
    draw = random.Random(f"way {case.kind} {case.number}")
    way = draw.choice(WAYS[case.kind])
    before = listing(case.folder)
    problems: list[str] = []
    reset_peak()
    at_first, started = peak_mb(), time.process_time()
    ended, message = "accepted", ""
    with warnings.catch_warnings(record=True) as warned, deadline():
        warnings.simplefilter("always")
        try:
            way(case)
        except UserError as error:
            ended, message = "refused", str(error)
            problems += wrong_line(message, case)
        except Hangs:
            problems.append("it hangs")
        except Exception as error:
            problems.append(described(error))
    seconds, mb = time.process_time() - started, peak_mb() - at_first
    problems += [f"warning {w.category.__name__}: {w.message}" for w in warned
                 if not issubclass(w.category, ResourceWarning | DeprecationWarning)]  # fmt: skip
    if seconds > MOST_S or mb > MOST_MB:
        problems.append(f"{seconds:.1f} s, {mb:.0f} MB")
    may_write = ended == "accepted" and way.__name__ in MAY_WRITE
    problems += changes(before, listing(case.folder), may_write)
    if problems:
        ended, message = "wrong", f"{'; '.join(problems)} | {message}"
    return Verdict(case.kind, case.number, way.__name__, ended, round(seconds, 2), round(mb),
                   message[:600])  # fmt: skip


def described(error: Exception) -> str:
    """An exception with the last places that it came through."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:150]} ({places})"


def wrong_line(message: str, case: Case) -> list[str]:
    """What is wrong with the message of a refusal, as it is printed."""
    problems = []
    message = one_line(message)
    if not message.isprintable():
        problems.append("it steers a terminal")
    if len(message) > LONGEST:
        problems.append(f"its line has {len(message)} characters")
    named = str(case.folder) in message or case.path.name in message
    if not named and not any(message.startswith(name) for name in OPTIONS):
        problems.append("it names no file")
    return problems


def listing(folder: Path) -> dict[str, object]:
    """What is there: kind, and content, size or target, of everything below."""
    found: dict[str, object] = {}
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            try:
                status = path.lstat()
            except OSError:  # further down than a path can say
                continue
            key = str(path.relative_to(folder))
            if stat.S_ISLNK(status.st_mode):
                found[key] = os.readlink(path)
            elif not stat.S_ISREG(status.st_mode):
                found[key] = stat.S_IFMT(status.st_mode)
            elif status.st_size > 1 << 22:
                found[key] = (status.st_size, status.st_mtime_ns)
            else:
                found[key] = hashlib.sha256(path.read_bytes()).digest()
    return found


def changes(before: dict, after: dict, may_write: bool) -> Iterator[str]:
    """What is not as it must be after a case."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        base = name.rpartition("/")[2]
        if name.startswith(OUTSIDE):
            yield f"{name!r} is outside, and changed"
        elif base == LOCK:
            continue  # says who holds it, and nothing afterwards
        elif not may_write:
            yield f"{name!r} was changed"
        elif base.startswith(".") and name not in before:
            yield f"{name!r} was left behind"


@contextlib.contextmanager
def deadline() -> Iterator[None]:
    """Raises Hangs inside of the block after `HANGS_S`."""

    def give_up(*_):
        raise Hangs

    earlier = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def peak_mb() -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
