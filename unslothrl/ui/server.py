"""The page's server: what the page asks for, answered by the run folders and the command line.

What the files of a run say is text, of whatever kind: a folder may be somebody else's."""

import datetime
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

import unslothrl
from unslothrl.config.toml_files import EMBEDDED_RECIPES, command_of, entries, path_of
from unslothrl.config.values import RUN
from unslothrl.embedded import BASES, EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import is_file, leads_out, read_text
from unslothrl.rewards import builtin
from unslothrl.system.machine import Machine
from unslothrl.text import one_line
from unslothrl.tracking import run_folder
from unslothrl.tracking.report.history import DAMAGED, WRONG, RunHistory
from unslothrl.tracking.report.page import asset
from unslothrl.tracking.report.verdict import cells, verdict
from unslothrl.ui.guard import OF_PAGE, OF_REPORT, PAGE, POLICY, REPORT, Guard, key_of
from unslothrl.ui.processes import COMMANDS, SHOWN, Answering, Training, asked, flags

HOST = "127.0.0.1"
EXPORTS = "exports"  # in a run's folder
CODE = {  # options that may name code of whoever made the run -> what tells that one does
    **dict.fromkeys(("reward", "learner", "environment", "tools"), ".py"),
    "environment_python": "/",
}
ONE_PROCESS = {"cluster": ["local"], "engine": ["transformers"], "number_of_actors": ["0"]}


def serve(folder: Path, port: int) -> None:
    """Until Ctrl-C. `port`: 0 for any that is free."""
    listener = socket.create_server((HOST, port))
    port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
    app = Guard(Site(folder, token).app, token, (f"{HOST}:{port}", f"localhost:{port}"))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="off",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    print(f"http://{HOST}:{port}{PAGE}?token={token}", flush=True)
    print("open it in a browser on this machine; Ctrl-C ends the page, not runs", file=sys.stderr)
    uvicorn.Server(config).run(sockets=[listener])


def answer(value: Any, code: int = 200) -> Response:
    """JSON in ASCII: what a file holds need not be UTF-8."""
    return Response(json.dumps(value), code, media_type="application/json")


class Site:
    """The runs in `folder`. All that it keeps are the processes that it has started."""

    def __init__(self, folder: Path, token: str):
        self.folder, self.token = folder, token
        self.started: dict[str, Training] = {}  # by the run's name
        self.answering = Answering()
        posts = (self.plan, self.start, self.stop, self.resume, self.export)
        routes = [
            Route(PAGE, self.page),
            Route(REPORT, self.report),
            Route("/choices", lambda request: answer(choices())),
            Route("/runs", lambda request: answer(self.listed())),
            Route("/run", lambda request: answer(self.run(request.query_params["name"]))),
            Route("/ask", self.ask, methods=["POST"]),
            *(Route(f"/{each.__name__}", posted(each), methods=["POST"]) for each in posts),
        ]
        refused = {UserError: lambda request, error: answer({"error": str(error)}, 400)}
        self.app = Starlette(routes=routes, exception_handlers=refused)

    def page(self, request: Request) -> Response:
        folder, nonce = Path(__file__).parent, secrets.token_urlsafe(16)
        text = (folder / "page.html").read_text("utf-8").replace("NONCE", nonce)
        style, script = ((folder / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
        text = text.replace("STYLE", asset("base.css") + style, 1).replace("SCRIPT", script, 1)
        return HTMLResponse(text, headers={POLICY: OF_PAGE.format(nonce)})

    def report(self, request: Request) -> Response:
        run, headers = named(self.folder, request.query_params["name"]), {POLICY: OF_REPORT}
        if (path := own_file(run, run_folder.REPORT)) is None:
            raise UserError(f"{run.name} has no report yet")
        return FileResponse(path, media_type="text/html", headers=headers)

    def listed(self) -> list[dict[str, str]]:
        """Name and status of each, the newest first; those that have not begun before them."""
        known = found(self.folder)
        names = [*(name for name in reversed(self.started) if name not in known), *known]
        return [{"name": name, "status": self.status(name, known.get(name))} for name in names]

    def status(self, name: str, run: Path | None) -> str:
        training = self.started.get(name)
        if training and training.is_running:
            return "running" if run else "starting"
        if run is None:
            return "failed" if training and training.error else "stopped before it began"
        try:
            return str(unslothrl.Run(run).status)
        except (OSError, *WRONG):
            return DAMAGED

    def run(self, name: str) -> dict[str, Any]:
        training = self.started.get(name)
        run = found(self.folder).get(name) if training else named(self.folder, name)
        shown = {"name": name, "error": "", **(described(run) if run else {})}
        shown["status"] = self.status(name, run)
        if training:
            shown |= {"output": training.output, "error": training.error or shown["error"]}
        if shown.get("has_report"):
            shown["key"] = key_of(self.token, name)
        return shown

    def start(self, options: dict[str, list[str]]) -> dict[str, str]:
        """Begins a run in a process of its own. -> its name"""
        command, now = command_of(options.get("recipe", [None])[-1]), datetime.datetime.now()
        (wanted,) = options.get("run_name") or [f"{command}-{now:%Y%m%d-%H%M%S}"]
        name = run_folder.free_name(str(self.folder), wanted)
        words = flags(command, {**options, "run_name": [name]})
        return self.train(name, [command, *words, f"--output_dir={self.folder}"])

    def resume(self, name: str, max_steps: str = "") -> dict[str, str]:
        run, more = named(self.folder, name), [f"--max_steps={max_steps}"] * bool(max_steps)
        command = command_of(str(run / run_folder.CONFIG))
        return self.train(name, [command, f"--resume={run}", *more])

    def train(self, name: str, words: list[str]) -> dict[str, str]:
        if name in self.started and self.started[name].is_running:
            raise UserError(f"{name} is running")
        self.answering.end()  # its memory is the run's
        self.started[name] = Training(words)
        return {"name": name}

    def stop(self, name: str) -> dict[str, str]:
        training = self.started.get(name)
        if training and training.is_running:
            training.process.terminate()
            training.process.wait()
        elif run := found(self.folder).get(name):
            unslothrl.Run(run).stop()
        return {"name": name}

    def plan(self, options: dict[str, list[str]]) -> dict[str, str]:
        command = command_of(options.get("recipe", [None])[-1])
        words = ["plan", *([] if command == RUN.command else [command])]
        return {"said": asked(*words, *flags(command, options))}

    def export(self, name: str, to: str) -> dict[str, str]:
        """Into the run's folder. -> what the command has printed"""
        run = named(self.folder, name)
        adapter = adapter_of(run)
        folder = inside(run, run / EXPORTS / f"{name}-{adapter.name}-{to}")
        return {"said": asked("export", str(adapter), f"--to={to}", f"--output={folder}")}

    async def ask(self, request: Request) -> Response:
        """The answers to {"name": of a run, "turns": by policy}, as they are generated."""
        body = await request.json()
        adapter = adapter_of(named(self.folder, body["name"]))
        lines = self.answering.answer(adapter, json.dumps(body["turns"]))
        return StreamingResponse(lines, media_type="application/x-ndjson")


def posted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Answers what is posted, an object with the arguments of `function`, in a thread."""

    async def called(request: Request) -> Response:
        return answer(await run_in_threadpool(function, **await request.json()))

    return called


def choices() -> dict[str, Any]:
    """Recipes, those that fit first, with their options; files of the current folder; all options
    by command, with their help; and what is best without a GPU: one process, the embedded task."""
    machine, usual = Machine.detect(), {"model": {*BASES}, "dataset": {*BASES}}
    recipes = json.loads(asked("recipes", "--json"))
    for each in recipes:
        each["options"] = entries(path_of(each["name"]))
        for name, known in usual.items():
            known.add(str(each["options"].get(name, EMBEDDED)))
    gpus = ", ".join(f"{gpu.name} ({gpu.memory_mb / 1024:.0f} GB)" for gpu in machine.gpus)
    data = (".jsonl", ".json", ".csv", ".parquet")
    files = sorted(each.name for each in os.scandir() if each.name.endswith(data))
    return {
        "machine": f"{machine.cpus} CPU cores, {gpus or 'no GPU'}",
        "recipes": recipes,
        "recipe": recipes[0]["name"] if gpus else EMBEDDED_RECIPES[EMBEDDED],
        "one_process": {} if gpus else ONE_PROCESS,
        "model": sorted(usual["model"]),
        "dataset": files + sorted(usual["dataset"]),
        "reward": builtin.names(),
        "options": {
            command: {of.spellings(x)[0]: of.options[x].metadata["help"] for x in of.options}
            for command, of in COMMANDS.items()
        },
    }


# Runs by their folders


def found(folder: Path) -> dict[str, Path]:
    """Name -> folder of each run, the newest first; none that is a link to what lies elsewhere."""
    return {
        path.name: path
        for path in reversed(run_folder.runs_in(folder))
        if not leads_out(path, folder) and path.name.isprintable()
    }


def named(folder: Path, name: str) -> Path:
    """UserError where there is no such run."""
    runs = found(folder)
    if name not in runs:
        raise UserError(f"there is no run {name!r:.100} in {folder}")
    return runs[name]


def adapter_of(run: Path) -> Path:
    """The newest. UserError where none is saved yet."""
    adapter = unslothrl.Run(run).adapter
    if adapter is None:
        raise UserError(f"{run.name} has saved no adapter yet: wait for it, or stop the run")
    return inside(run, adapter)


def inside(run: Path, path: Path) -> Path:
    """A path in a run's folder. UserError for one that a link leads out of it."""
    if not path.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{path} leads out of {run.name}")
    return path


def described(run: Path) -> dict[str, Any]:
    """What a run has done so far, what is wrong with it, and what can be done with it."""
    adapter = unslothrl.Run(run).adapter
    shown: dict[str, Any] = {
        "adapter": adapter and adapter.name,
        "exports": [str(path) for path in sorted(run.glob(f"{EXPORTS}/*"))],
        "has_report": own_file(run, run_folder.REPORT) is not None,
        "error": "",
    }
    try:
        shown["options"] = own_text(run, run_folder.CONFIG)
        history = RunHistory.read(run_folder.RunFolder(run))
        judged = verdict(history)
        shown |= {"facts": cells(history), "verdict": judged.said, "advice": judged.advice}
        options, shown["most"] = history.options, history.options.get("max_steps")
        shown["model"] = options.get("model")
        shown["code"] = [f"{x} {options[x]}" for x in CODE if CODE[x] in str(options.get(x))]
        if history.status == "failed":
            shown["traceback"] = own_text(run, run_folder.ERROR)
            last = shown["traceback"].strip().rpartition("\n")[2]
            shown["error"] = str(history.summary.get("error") or last)
    except (OSError, *WRONG) as error:
        shown["error"] = f"a file of the run is damaged: {one_line(error)}"
    return shown


def own_file(run: Path, name: str) -> Path | None:
    """A file of a run's folder; None where it is not there, or is a link out of it."""
    path = run / name
    return path if is_file(path) and not leads_out(path, run) else None


def own_text(run: Path, name: str) -> str:
    """The end of such a file, which holds the message of a traceback; "" where there is none."""
    path = own_file(run, name)
    return read_text(path)[-SHOWN:] if path else ""
