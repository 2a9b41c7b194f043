"""Runs from Python, in a script or a notebook: docs/python-api.md.

Options are those of the command line. A run is a process of its own, the command line's: it gives
the same adapter bit for bit whatever else this process computes, and leaves no memory behind.
Interrupting it (Ctrl-C, or a notebook's stop button) saves the last whole step.
"""

import hashlib
import inspect
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unslothrl.config.values import off
from unslothrl.errors import RunError, UserError
from unslothrl.files import newest_numbered, write_whole
from unslothrl.runs.run import BEGUN
from unslothrl.system.variables import error_in, process
from unslothrl.tracking import run_folder
from unslothrl.tracking.rows import read_jsonl
from unslothrl.weights.base_model import cache_folder

POLL_S = 0.2
WATCHED = ("reward/mean", "/pass@1", "rollout/mean_length")
OBJECTS = ("reward", "learner", "environment")  # options that may be objects

Row = dict[str, Any]


def train(wait: bool = True, **options: Any) -> "Run":
    """Trains a LoRA by reinforcement learning, as `unslothrl train` does.

    `reward` may be a function or a list with functions, `learner` an `Objective`, `environment` a
    class and `dataset` a list of rows; `objective` is a mapping. With `wait` it returns when the
    run has ended, else when it has begun.

    Raises UserError for options that do not fit together, RunError where the run fails.
    """
    return _start("train", options, wait)


def sft(wait: bool = True, **options: Any) -> "Run":
    """Trains a LoRA on written answers, as `unslothrl sft` does. See `train`."""
    return _start("sft", options, wait)


def dpo(wait: bool = True, **options: Any) -> "Run":
    """Trains a LoRA on pairs of answers, as `unslothrl dpo` does. See `train`."""
    return _start("dpo", options, wait)


def rm(wait: bool = True, **options: Any) -> "Run":
    """Trains a reward model on pairs of answers, as `unslothrl rm` does. See `train`."""
    return _start("rm", options, wait)


def evaluate(run: "Run | str | Path | None" = None, **options: Any) -> Row:
    """Compares an adapter with its base, as `unslothrl eval --json` does: pass@k and majority vote
    with their intervals. `run`: a run or an adapter's folder, by default the newest run's."""
    folder = run.folder if isinstance(run, Run) else run
    words = ["eval", *([str(folder)] if folder else []), "--json", *_flags(options)]
    done = subprocess.run(**process(words), capture_output=True)
    _raise(done.returncode, done.stderr.splitlines())
    return json.loads(done.stdout)


class Run:
    """A run by its folder, while it trains and afterwards."""

    def __init__(self, folder: Path | str, process: "subprocess.Popen[str] | None" = None):
        self.folder, self._process, self._said = Path(folder), process, list[str]()

    @classmethod
    def newest(cls, output_dir: str = "runs") -> "Run":
        """The run that was begun last. UserError where there is none."""
        return cls(run_folder.newest(Path(output_dir), has_adapter=False))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.status})"

    def _repr_html_(self) -> str:
        """A notebook shows the report."""
        page = self.report.read_text("utf-8").replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" width="100%" height="600"></iframe>'
        )

    @property
    def is_running(self) -> bool:
        """Also where another process has begun or resumed it."""
        return self._process.poll() is None if self._process else run_folder.is_held(self.folder)

    @property
    def status(self) -> str:
        """running, finished, interrupted, failed or, of a process that was killed, killed."""
        return "running" if self.is_running else self.summary.get("status", "killed")

    @property
    def summary(self) -> Row:
        """summary.json: status, steps, seconds, first and best evaluation; {} while it runs."""
        return {} if self.is_running else run_folder.RunFolder(self.folder).read_summary()

    @property
    def config(self) -> Row:
        """All options as they were resolved."""
        return tomllib.loads((self.folder / run_folder.CONFIG).read_text("utf-8"))

    @property
    def rows(self) -> list[Row]:
        """metrics.jsonl so far."""
        return run_folder.RunFolder(self.folder).read_metrics(lambda damaged: None)

    @property
    def metrics(self) -> Any:
        """A pandas.DataFrame of `rows`, by step."""
        import pandas

        return pandas.DataFrame(self.rows).set_index("step")

    def rollouts(self, step: int | None = None) -> list[Row]:
        """Every completion of a step, by default the last: prompt, completion, answer, rewards."""
        folder = run_folder.RunFolder(self.folder)
        last = folder.steps_of(run_folder.ROLLOUTS)[-1] if step is None else step
        return read_jsonl(folder.step_file(run_folder.ROLLOUTS, last))

    @property
    def report(self) -> Path:
        return self.folder / run_folder.REPORT

    @property
    def adapter(self) -> Path | None:
        """The newest that is saved."""
        return newest_numbered(self.folder / run_folder.ADAPTERS, "v")

    def __iter__(self) -> Iterator[Row]:
        """The rows of metrics, each as soon as it is written, until the run has ended. Where it is
        waited for, Ctrl-C ends the run after its step."""
        seen = 0
        while True:
            is_running = self.is_running
            rows = self.rows
            yield from rows[seen:]
            seen = len(rows)
            if not is_running:
                self.wait()
                return
            try:
                time.sleep(POLL_S)
            except KeyboardInterrupt:
                if self._process is not None:
                    self.stop()
                raise

    def watch(self, *names: str) -> None:
        """Draws its curves in a notebook until it has ended, a panel for each of `names` with every
        metric whose name ends so. Needs matplotlib and IPython."""
        import matplotlib.pyplot as plt
        from IPython.display import display

        names, drawn = names or WATCHED, 0
        size = (4 * len(names), 3)
        figure, panels = plt.subplots(1, len(names), figsize=size, dpi=72, squeeze=False)
        figure.set_layout_engine("tight")
        shown = display(figure, display_id=True)
        try:
            for number, _ in enumerate(self, 1):
                if number > drawn:  # else it was there when the last picture was drawn
                    metrics = self.metrics
                    drawn = len(metrics)
                    for name, panel in zip(names, panels[0], strict=True):
                        draw(panel, metrics, name)
                    shown.update(figure)
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            plt.close(figure)

    def wait(self) -> "Run":
        """Until it has ended; Ctrl-C ends it after its step. RunError where it has failed."""
        if self._process is not None:
            try:
                code = self._process.wait()
            except KeyboardInterrupt:
                self.stop()
                raise
            _raise(code, self._said)
        while self.is_running:  # another process's
            time.sleep(POLL_S)
        return self

    def stop(self) -> "Run":
        """Ends it: the last whole step and its adapter are saved. UserError where another host's
        process trains it."""
        if self.is_running:
            if self._process is None:
                run_folder.stop_holder(self.folder)
                return self.wait()
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
        return self

    def _follow(self) -> None:
        """Prints what the process says."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line.rstrip())
            print(line, end="", flush=True)


def draw(panel: Any, metrics: Any, name: str) -> None:
    """The curves of the metrics whose name ends so, in a panel of matplotlib's."""
    panel.clear()
    panel.set_title(name)
    named = metrics.columns[metrics.columns.str.endswith(name)]
    for column in named:
        values = metrics[column].dropna()
        panel.plot(values.index, values, marker=".", label=column)
    if len(named) > 1:
        panel.legend()


def _start(command: str, options: Mapping[str, Any], wait: bool) -> Run:
    with tempfile.TemporaryDirectory() as scratch:
        begun = Path(scratch, "begun")
        # in a session of its own: Ctrl-C reaches it once, from here
        more: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        given = process([command, *_flags(options)], {BEGUN: str(begun)})
        run = Run("", subprocess.Popen(**given, **more, start_new_session=True))
        follower = threading.Thread(target=run._follow, daemon=True)
        follower.start()
        try:
            while not begun.exists() and run.is_running:
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            run.stop()
            raise
        if begun.exists():
            run.folder = Path(begun.read_text())
    if wait or not run.is_running:
        run.wait()
        follower.join()
    return run


def _raise(code: int, said: list[str]) -> None:
    """What the command line has said of a mistake or a failure; nothing where it was stopped."""
    if code in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM):
        return
    raise (UserError if code == 2 else RunError)(error_in(said) or f"exit code {code}")


# Options as flags


def _flags(options: Mapping[str, Any]) -> list[str]:
    """The flags of options by name; what is an object becomes a file that holds it."""
    flags: list[str] = []
    named = {f"objective.{k}": v for k, v in options.get("objective", {}).items()}
    for name, value in {**options, "objective": None, **named}.items():
        if isinstance(value, bool):
            flags.append(f"--{name if value else off(name)}")
        elif value is not None:
            flags += [f"--{name}={text}" for text in _texts(name, value)]
    return flags


def _texts(name: str, value: Any) -> list[str]:
    if name == "dataset" and isinstance(value, list):
        content = "".join(json.dumps(row) + "\n" for row in value)
        return [str(_file("rows.jsonl", content.encode()))]
    if isinstance(value, Mapping):  # several evaluation sets
        return [f"{key}={each}" for key, each in value.items()]
    values = value if isinstance(value, list | tuple) else [value]
    return [_by_name(each) if name in OBJECTS else str(each) for each in values]


def _by_name(value: Any) -> str:
    """`file.py:name` of an object, in the file that defines it or in one that is written."""
    if isinstance(value, str | Path):
        return str(value)
    name = getattr(value, "__name__", "OBJECTIVE")
    module = sys.modules.get(getattr(value, "__module__", ""))
    file = getattr(module, "__file__", None)
    if file and value.__module__ != "__main__" and getattr(module, name, None) is value:
        path = Path(file)
    else:
        path = _file(f"{name}.py", _pickled(value, name).encode())
    return str(path) if name == "OBJECTIVE" else f"{path}:{name}"


def _pickled(value: Any, name: str) -> str:
    """Python that makes an object again; of a function with a `def` of the same parameters, which
    are read from the text before it runs, and in whose place the function then is."""
    import cloudpickle

    if not name.isidentifier():
        raise UserError(f"{name} has no name: define it with `def`, or name it as file.py:name")
    loaded = f"cloudpickle.loads({cloudpickle.dumps(value)!r})"
    if not inspect.isfunction(value):
        return f"import cloudpickle\n\n{name} = {loaded}\n"
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty, default=empty if each.default is empty else ...)
        for each in inspect.signature(value).parameters.values()
    ]
    signature = str(inspect.Signature(parameters)).replace("Ellipsis", "...")
    define = "async def" if inspect.iscoroutinefunction(value) else "def"
    return f"import cloudpickle\n\n\n@lambda _: {loaded}\n{define} {name}{signature}: ...\n"


def _file(name: str, content: bytes) -> Path:
    """The same content is the same file, which a resumed run finds unless it has been deleted."""
    folder = cache_folder() / "objects" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / name, content)
    return folder / name
