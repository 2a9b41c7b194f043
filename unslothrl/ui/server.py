"""The page's server: what the page asks for, answered by the run folders and the command line."""

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
from unslothrl.rewards import builtin
from unslothrl.system.machine import Machine
from unslothrl.tracking import run_folder
from unslothrl.tracking.report.page import asset
from unslothrl.ui import runs
from unslothrl.ui.guard import OF_PAGE, OF_REPORT, PAGE, POLICY, REPORT, Guard, key_of
from unslothrl.ui.processes import COMMANDS, Answering, Training, asked, flags

HOST = "127.0.0.1"
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
        run, headers = runs.named(self.folder, request.query_params["name"]), {POLICY: OF_REPORT}
        if (path := runs.own_file(run, run_folder.REPORT)) is None:
            raise UserError(f"{run.name} has no report yet")
        return FileResponse(path, media_type="text/html", headers=headers)

    def listed(self) -> list[dict[str, str]]:
        """Name and status of each, the newest first; those that have not begun before them."""
        known = runs.found(self.folder)
        names = [*(name for name in reversed(self.started) if name not in known), *known]
        return [{"name": name, "status": self.status(name, known.get(name))} for name in names]

    def status(self, name: str, run: Path | None) -> str:
        training = self.started.get(name)
        if training and training.is_running:
            return "running" if run else "starting"
        if run is None:
            return "failed" if training and training.error else "stopped before it began"
        return runs.status(run)

    def run(self, name: str) -> dict[str, Any]:
        training, run = self.started.get(name), runs.found(self.folder).get(name)
        if training is None:
            run = runs.named(self.folder, name)
        shown = {"name": name, "error": "", **(runs.described(run) if run else {})}
        shown["status"] = self.status(name, run)
        if training:
            shown |= {"output": training.output, "error": training.error or shown["error"]}
        if shown.get("has_report"):
            shown["key"] = key_of(self.token, name)
        return shown

    def start(self, options: dict[str, list[str]]) -> dict[str, str]:
        """Begins a run in a process of its own. -> its name"""
        command, now = command_for(options), datetime.datetime.now()
        (wanted,) = options.get("run_name") or [f"{command}-{now:%Y%m%d-%H%M%S}"]
        name = run_folder.free_name(str(self.folder), wanted)
        words = flags(command, {**options, "run_name": [name]})
        return self.train(name, [command, *words, f"--output_dir={self.folder}"])

    def resume(self, name: str, max_steps: str = "") -> dict[str, str]:
        run, more = runs.named(self.folder, name), [f"--max_steps={max_steps}"] * bool(max_steps)
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
        elif run := runs.found(self.folder).get(name):
            unslothrl.Run(run).stop()
        return {"name": name}

    def plan(self, options: dict[str, list[str]]) -> dict[str, str]:
        command = command_for(options)
        words = ["plan", *([] if command == RUN.command else [command])]
        return {"said": asked(*words, *flags(command, options))}

    def export(self, name: str, to: str) -> dict[str, str]:
        """Into the run's folder. -> what the command has printed"""
        run = runs.named(self.folder, name)
        adapter = runs.adapter_of(run)
        folder = runs.inside(run, run / runs.EXPORTS / f"{name}-{adapter.name}-{to}")
        return {"said": asked("export", str(adapter), f"--to={to}", f"--output={folder}")}

    async def ask(self, request: Request) -> Response:
        """The answers to {"name": of a run, "turns": by policy}, as they are generated."""
        body = await request.json()
        adapter = runs.adapter_of(runs.named(self.folder, body["name"]))
        lines = self.answering.answer(adapter, json.dumps(body["turns"]))
        return StreamingResponse(lines, media_type="application/x-ndjson")


def command_for(options: dict[str, list[str]]) -> str:
    """The command that a recipe is for."""
    return command_of(options["recipe"][-1]) if "recipe" in options else RUN.command


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
