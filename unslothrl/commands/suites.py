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
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unslothrl.algorithms.estimates import paired
from unslothrl.commands.adapters import Source, find, source_of
from unslothrl.config.parts import half_precision, vllm_rank
from unslothrl.errors import RunError, UserError
from unslothrl.export.serving import CPU_CACHE_GB, SERVER
from unslothrl.files import expanded
from unslothrl.system import stopping, variables
from unslothrl.system.machine import Machine
from unslothrl.text import for_terminal
from unslothrl.tracking.run_folder import EVALS
from unslothrl.weights import adapter_check
from unslothrl.weights.base_model import cache_folder, say

PINS = Path(__file__).with_suffix(".txt")  # of lm-eval and all that it needs
BASE, ADAPTER = "base", "adapter"
FULL_NAMES = {"math500": "minerva_math500"}
OPTIONS = ("model", "system_prompt", "max_new_tokens", "eval_problems")  # that suites know
BATCH = 128  # prompts in a request: lm-eval cuts what is too long for the model only there


def evaluate(
    adapter: str, suites: str, own: str | None, flags: Mapping[str, Any], with_base: bool,
    output: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Prints the figures of `suites`, names of lm-eval's tasks, and writes what lm-eval says and
    every completion into `output`, by default a folder in the run's evals/. UserError, RunError."""
    if others := sorted(set(flags) - {*OPTIONS}):
        raise UserError(f"{others[0]} is not for --suite, whose tasks say it: leave it out")
    found = find(adapter)
    if output is None and found.run is None:
        raise UserError("output is not set, and the adapter is of no run: set --output FOLDER")
    target = expanded(output) if output else found.run / EVALS / f"{found.folder.name}-suites"  # type: ignore[operator]
    source = source_of(found, flags.get("model"))
    python = library()
    results = {}
    with tempfile.TemporaryDirectory(prefix="unslothrl-") as temporary:
        tokenizer, request = Path(temporary) / "tokenizer", Path(temporary) / "request.yaml"
        source.tokenizer(needs_template=True).save_pretrained(tokenizer)
        tasks = tasks_of(suites, own, Path(temporary))
        target.mkdir(parents=True, exist_ok=True)
        say(f"starting vLLM's server over {source.name}: {target / 'server.log'}")
        with served(source, tokenizer, target / "server.log") as (address, context):
            for name in (BASE, ADAPTER) if with_base else (ADAPTER,):
                say(f"{suites} with the {name}")
                shutil.rmtree(target / name, ignore_errors=True)
                asked = wanted(name, address, context, tokenizer, tasks, own, flags, target)
                request.write_text(json.dumps(asked), encoding="utf-8")
                quiet = {"LMEVAL_LOG_LEVEL": "WARNING", **os.environ}
                command = [python, "-m", "lm_eval", "run", "--config", str(request)]
                if code := subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL).returncode:
                    raise RunError(
                        f"suite {suites}: lm-eval ended with exit code {code}, see above"
                    )
                results[name] = read(target / name)
    if as_json:
        print(json.dumps({"adapter": str(found.folder), "suites": results}))
    else:
        lines = [*table(results), "", f"completions, and what lm-eval recorded: {target}"]
        print(for_terminal("\n".join(lines), kept="\n\t"))


def library() -> str:
    """-> the Python of lm-eval's environment, which is made unless it is there."""
    pins = PINS.read_bytes()
    folder = cache_folder().parent / "lm-eval"
    python, done = folder / "bin" / "python", folder / "installed"  # written last
    if not done.is_file() or done.read_bytes() != pins:
        say(f"installing lm-eval into {folder}, once: about 250 MB to download, 1 GB on disk")
        base = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--no-deps", "-r", str(PINS)]
        subprocess.run([*pip, "--disable-pip-version-check"], check=True)
        done.write_bytes(pins)
    return str(python)


def tasks_of(suites: str, own: str | None, folder: Path) -> list[str]:
    """The tasks as lm-eval takes them. Of those that have a folder of their name in `own`, the rows
    are read from its files: they become a group in a file in `folder`."""
    names = [FULL_NAMES.get(name, name) for name in suites.split(",")]
    data = {name: expanded(own or "") / name for name in names}
    local = [name for name in names if own and data[name].is_dir()]
    group = folder / "local.yaml"
    rows = [
        {"task": n, "dataset_path": str(data[n].resolve()), "dataset_name": None} for n in local
    ]
    group.write_text(json.dumps({"group": "local", "task": rows}), encoding="utf-8")
    return [name for name in names if name not in local] + [str(group)] * bool(local)


def wanted(
    name: str, address: str, context: int, tokenizer: Path, tasks: list[str], own: str | None,
    flags: Mapping[str, Any], target: Path,
) -> dict[str, Any]:  # fmt: skip
    """The settings of lm-eval, as its `--config` takes them."""
    limit, longest = flags.get("eval_problems"), flags.get("max_new_tokens")
    return {
        "model": "local-completions",  # tokens in: log-likelihoods too, which a chat server lacks
        "model_args": {
            "model": name, "base_url": f"{address}/v1/completions", "max_length": context,
            "tokenizer_backend": "huggingface", "tokenizer": str(tokenizer),
            "timeout": 3600,
        },
        "tasks": tasks, "batch_size": BATCH, "apply_chat_template": True, "log_samples": True,
        "output_path": str(target),
        **({"include_path": str(expanded(own))} if own else {}),
        **({"limit": limit} if limit else {}),
        **({"gen_kwargs": {"max_gen_toks": longest}} if longest else {}),
        **({"system_instruction": text} if (text := flags.get("system_prompt")) else {}),
    }  # fmt: skip


@contextlib.contextmanager
def served(source: Source, tokenizer: Path, log: Path) -> Iterator[tuple[str, int]]:
    """-> (address, context in tokens) of a server of the base and the adapter, by these names. It
    ends with the block, also by Ctrl-C or SIGTERM. RunError where it does not start."""
    gpus = Machine.detect().gpus
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    rank = adapter_check.check_settings(str(source.folder)).rank
    command = [
        sys.executable, "-m", SERVER, "--model", str(source.base), "--served-model-name", BASE,
        "--tokenizer", str(tokenizer), "--host", "127.0.0.1", "--port", port,
        "--dtype", half_precision(gpus[0].capability if gpus else None), "--max-model-len", "auto",
        "--enable-lora", "--max-lora-rank", str(vllm_rank(rank)),
        "--lora-modules", f"{ADAPTER}={source.folder.resolve()}", "--generation-config", "vllm",
        *([] if gpus else ["--enforce-eager"]),
    ]  # fmt: skip
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GB)}
    stopping.listen()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**variables.OF_VLLM, **own, **os.environ}, start_new_session=True,
            stdout=file, stderr=file,
        )  # fmt: skip
    try:
        yield (address := f"http://127.0.0.1:{port}"), context_of(address, process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def context_of(address: str, process: subprocess.Popen, log: Path) -> int:
    """The tokens that a server takes, when it has started. RunError where it ends instead."""
    while process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/v1/models") as said:
            return json.load(said)["data"][0]["max_model_len"]
        time.sleep(1)
    last = (log.read_text("utf-8", "replace").strip().splitlines() or [""])[-1]
    raise RunError(f"vLLM's server did not start ({last:.300}): read {log}")


def read(folder: Path) -> dict[str, Any]:
    """lm-eval's record of one policy, with each problem's values: "task metric,filter" -> those."""
    found = json.loads(next(folder.rglob("results_*.json")).read_text("utf-8"))
    values: dict[str, list[float]] = {}
    for path in sorted(folder.rglob("samples_*.jsonl")):
        task = path.stem.removeprefix("samples_").rpartition("_")[0]
        for row in map(json.loads, path.read_text("utf-8").splitlines()):
            for metric in row["metrics"]:
                values.setdefault(f"{task} {metric},{row['filter']}", []).append(row[metric])
    return {**found, "values": values}


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """For people: each metric of each task, with its standard error as lm-eval gives it; of means,
    the difference on the same problems with its 95% interval."""
    *_, last = results.values()
    rows = [["", "", *results, "difference"]]
    for task, figures in last["results"].items():
        count = last["n-samples"].get(task, {}).get("effective", "")
        version, shots = last["versions"].get(task), last["n-shot"].get(task)
        title = f"{task} v{version}, {shots}-shot, {count} problems"
        for metric in [each for each in figures if "," in each and "_stderr," not in each]:
            error = metric.replace(",", "_stderr,")
            of_each = [each["results"][task] for each in results.values()]
            shown = [f"{each[metric]:.4f} ± {each[error]:.4f}" for each in of_each]
            both = [each["values"].get(f"{task} {metric}") for each in results.values()]
            is_mean = len(both) > 1 and all(isinstance(v, int | float) for v in both[0] or [None])
            rows.append([title, metric, *shown, str(paired(*both)) if is_mean else ""])
            title = ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [f"lm-eval {last['lm_eval_version']}; ± is the standard error", *lines]
