"""`unslothrl eval --suite`: standard benchmarks of the base and of the adapter, by EleutherAI's
lm-evaluation-harness (lm-eval), which asks a server of vLLM's that has both.

lm-eval lives in a virtual environment of its own, in the cache. Its tasks are run as they are: each
with its own prompts, examples, sampling and metrics, through the adapter's chat template.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from unslothrl.algorithms.estimates import paired
from unslothrl.commands.adapters import ADAPTER, BASE, Source, find, source_of
from unslothrl.config.parts import half_precision, vllm_rank
from unslothrl.errors import RunError, UserError
from unslothrl.export.serving import CPU_CACHE_GB, SERVER
from unslothrl.files import expanded
from unslothrl.system import stopping, variables
from unslothrl.system.machine import Machine
from unslothrl.text import aligned, for_terminal
from unslothrl.tracking.run_folder import EVALS
from unslothrl.weights import adapter_check
from unslothrl.weights.base_model import cache_folder, say

PINS = Path(__file__).with_suffix(".txt")  # of lm-eval and all that it needs
FULL_NAMES = {"math500": "minerva_math500"}
OPTIONS = {"model", "system_prompt", "max_new_tokens", "eval_problems"}  # that suites know
BATCH = 128  # prompts in a request; lm-eval cuts prompts that are too long only in batches


def evaluate(
    adapter: str, suite: str, own: str | None, flags: Mapping[str, Any], with_base: bool,
    output: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Prints the figures of lm-eval's tasks `suite`, and writes its records and every completion
    into `output`, by default a folder in the run's evals/. UserError, RunError."""
    if others := sorted(flags.keys() - OPTIONS):
        raise UserError(f"{others[0]} is not for --suite, whose tasks say it: leave it out")
    found = find(adapter)
    if output is None and found.run is None:
        raise UserError("output is not set, and the adapter is of no run: set --output FOLDER")
    default = (found.run or Path()) / EVALS / f"{found.folder.name}-suites"
    target = expanded(output) if output else default
    source, python = source_of(found, flags.get("model")), library()
    target.mkdir(parents=True, exist_ok=True)
    results = {}
    with tempfile.TemporaryDirectory(prefix="unslothrl-") as temporary:
        folder = Path(temporary)
        source.tokenizer(needs_template=True).save_pretrained(folder)
        asked = settings(suite, own, flags, folder) | {"output_path": str(target)}
        say(f"starting vLLM's server over {source.name}, log: {target / 'server.log'}")
        with served(source, folder, target / "server.log") as of_server:
            for name in (BASE, ADAPTER) if with_base else (ADAPTER,):
                say(f"{suite} with the {name}")
                shutil.rmtree(target / name, ignore_errors=True)
                model = {"model_args": {"model": name, **of_server, **asked["model_args"]}}
                (folder / "asked.yaml").write_text(json.dumps(asked | model), encoding="utf-8")
                done = subprocess.run(
                    [python, "-m", "lm_eval", "run", "--config", str(folder / "asked.yaml")],
                    env={"LMEVAL_LOG_LEVEL": "WARNING", **os.environ}, stdout=subprocess.DEVNULL,
                )  # fmt: skip
                if done.returncode:
                    raise RunError(f"suite {suite}: lm-eval failed, and says why above")
                results[name] = read(target / name)
    if as_json:
        print(json.dumps({"adapter": str(found.folder), "suites": results}))
    else:
        lines = [*table(results), "", f"completions, and lm-eval's own records: {target}"]
        print(for_terminal("\n".join(lines), kept="\n\t"))


def library() -> str:
    """-> the Python of lm-eval's environment, which is made unless it is there."""
    folder = cache_folder().parent / "lm-eval"
    python, done = folder / "bin" / "python", folder / "installed"  # written last
    if not done.is_file() or done.read_bytes() != PINS.read_bytes():
        say(f"installing lm-eval into {folder}, once: 185 MB to download, 1 GB on disk")
        base = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", str(PINS)], check=True)
        done.write_bytes(PINS.read_bytes())
    return str(python)


def settings(suite: str, own: str | None, flags: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What lm-eval's `--config` takes, whichever policy it asks. Tasks that have a folder of their
    name in `own` read its files: a group of these is written into `folder`."""
    names = [FULL_NAMES.get(name, name) for name in suite.split(",")]
    files = {name: expanded(own) / name for name in names if own}
    local = {name: str(path.resolve()) for name, path in files.items() if path.is_dir()}
    rows = [{"task": name, "dataset_path": local[name], "dataset_name": None} for name in local]
    group = folder / "local.yaml"
    group.write_text(json.dumps({"group": "local", "task": rows}), encoding="utf-8")
    length = flags.get("max_new_tokens")
    return {
        "model": "local-completions",  # with log-likelihoods, which a server of chats lacks
        "model_args": {"tokenizer": str(folder), "tokenizer_backend": "huggingface",
                       "timeout": 3600},
        "gen_kwargs": {"max_gen_toks": length} if length else {},
        "tasks": [name for name in names if name not in local] + [str(group)] * bool(local),
        "include_path": own and str(expanded(own)), "limit": flags.get("eval_problems") or None,
        "system_instruction": flags.get("system_prompt"), "apply_chat_template": True,
        "batch_size": BATCH, "log_samples": True,
    }  # fmt: skip


@contextlib.contextmanager
def served(source: Source, tokenizer: Path, log: Path) -> Iterator[dict[str, Any]]:
    """-> what lm-eval takes of a server of the base and the adapter, by these names. It ends with
    the block, also by Ctrl-C or SIGTERM. RunError where it does not start."""
    gpus = Machine.detect().gpus
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rank = vllm_rank(adapter_check.check_settings(str(source.folder)).rank)
    dtype = half_precision(gpus[0].capability if gpus else None)
    command = [
        sys.executable, "-m", SERVER, "--model", source.base, "--tokenizer", tokenizer, "--dtype",
        dtype, "--max-model-len", "auto", "--host", "127.0.0.1", "--port", port, "--enable-lora",
        "--max-lora-rank", rank, "--lora-modules", f"{ADAPTER}={source.folder.resolve()}",
        "--served-model-name", BASE, "--generation-config", "vllm",
        *([] if gpus else ["--enforce-eager"]),
    ]  # fmt: skip
    environment = {
        **variables.OF_VLLM, "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GB), **os.environ,
    }  # fmt: skip
    stopping.listen()
    with log.open("wb") as to:
        streams: dict[str, Any] = {"stdout": to, "stderr": to, "start_new_session": True}
        server = subprocess.Popen([*map(str, command)], env=environment, **streams)
    address, context = f"http://127.0.0.1:{port}/v1", 0
    try:
        while not context:
            if server.poll() is not None:
                raise RunError(f"vLLM's server did not start: {log} says why")
            with contextlib.suppress(OSError), urlopen(f"{address}/models") as answer:
                context = json.load(answer)["data"][0]["max_model_len"]
            time.sleep(1)
        yield {"base_url": f"{address}/completions", "max_length": context}
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def read(folder: Path) -> dict[str, Any]:
    """lm-eval's record of one policy, and the values of problems: "task metric,filter" -> those."""
    found = json.loads(next(folder.rglob("results_*.json")).read_text("utf-8"))
    values: dict[str, list[float]] = {}
    for path in folder.rglob("samples_*.jsonl"):
        task = path.stem.removeprefix("samples_").rpartition("_")[0]
        for row in map(json.loads, path.read_text("utf-8").splitlines()):
            for metric in row["metrics"]:
                values.setdefault(f"{task} {metric},{row['filter']}", []).append(row[metric])
    return {**found, "values": values}


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """For people: each metric of each task with its standard error, as lm-eval gives them, and of
    means the difference on the same problems with its 95% interval."""
    *_, last = results.values()
    rows = [["", "", *results, "difference"]]
    for task, figures in last["results"].items():
        title, of = task, last["n-samples"].get(task)
        if of:  # not of a group
            shots, version = last["n-shot"][task], last["versions"][task]
            title += f" v{version}, {shots}-shot, {of['effective']} problems"
        for metric in [each for each in figures if "," in each and "_stderr," not in each]:
            both = [each["values"].get(f"{task} {metric}", []) for each in results.values()]
            of_all = [value for each in both for value in each]
            is_mean = len(both) > 1 and of_all and all(isinstance(v, int | float) for v in of_all)
            cells = [cell(each["results"][task], metric) for each in results.values()]
            rows.append([title, metric, *cells, str(paired(*both)) if is_mean else ""])
    return [f"lm-eval {last['lm_eval_version']}; ± is the standard error", *aligned(rows)]


def cell(figures: Mapping[str, Any], metric: str) -> str:
    values = (figures[metric], figures[metric.replace(",", "_stderr,")])
    return " ± ".join(f"{value:.4f}" if type(value) is float else str(value) for value in values)
