"""What the commands choose and refuse on machines that are not here: the table of docs/install.md.

    .venv-gpu-set/bin/python bench/machines.py

Each machine is a folder with an nvidia-smi that answers as its driver would. The real commands run
in processes of their own: `make check`, `plan`, `doctor` and the main job. In them
bench/site stands in for two things alone: what torch finds when it is asked for GPUs, and
the name of WSL 2's kernel. The model is a cached folder of the right sizes without its weights, and
the main job is ended when it would start the first process that computes on a GPU.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from on_card.model import add_tokenizer

from unslothrl.planning.fit import MODELS
from unslothrl.system.variables import COMPAT
from unslothrl.weights import shapes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "install.md"
NOW = "580.95.05"  # a driver for CUDA 13
COMMIT = "0" * 40
STARTING = "starting Ray"  # the first line after the last check
SMI = """#!/bin/sh
case "$*" in
-L) cat {folder}/listed ;;
*driver_version,name*) cat {folder}/drivers ;;
*) cat {folder}/queried ;;
esac
"""


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_mb: int
    free_mb: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Machine:
    gpus: tuple[Gpu, ...]
    driver: str = NOW
    compat: bool = False  # whether cuda-compat-13-0 is installed
    kernel: str = ""  # its release, where that matters
    flags: tuple[str, ...] = ()  # of `train`


T4 = Gpu("Tesla T4", 15_095, 14_990, (7, 5))
RTX_3060 = Gpu("NVIDIA GeForce RTX 3060", 11_910, 11_500, (8, 6))
RTX_3090 = Gpu("NVIDIA GeForce RTX 3090", 24_136, 23_800, (8, 6))
RTX_4090 = Gpu("NVIDIA GeForce RTX 4090", 24_079, 23_600, (8, 9))
H100 = Gpu("NVIDIA H100 80GB HBM3", 81_079, 80_500, (9, 0))
COLAB = "550.54.15"
RECIPE = ("--recipe", "colab-t4")
MACHINES = {
    "Colab's T4, driver 550": Machine((T4,), COLAB),
    "the same with cuda-compat-13-0": Machine((T4,), COLAB, compat=True),
    "the same, `--recipe colab-t4`": Machine((T4,), COLAB, compat=True, flags=RECIPE),
    "laptop, RTX 4060 of 8 GB": Machine(
        (Gpu("NVIDIA GeForce RTX 4060 Laptop GPU", 7_798, 7_300, (8, 9)),)
    ),
    "RTX 3060, 12 GB": Machine((RTX_3060,)),
    "RTX 3060, driver 550": Machine((RTX_3060,), COLAB),
    "RTX 4070 Ti, 12 GB": Machine((Gpu("NVIDIA GeForce RTX 4070 Ti", 11_873, 11_400, (8, 9)),)),
    "RTX 4090, 24 GB": Machine((RTX_4090,)),
    "2 x RTX 4090": Machine((RTX_4090,) * 2),
    "2 x RTX 3090, 8 GB of one in use": Machine(
        (RTX_3090, Gpu(RTX_3090.name, RTX_3090.memory_mb, 15_900, (8, 6)))
    ),
    "H100, 80 GB": Machine((H100,)),
    "8 x H100": Machine((H100,) * 8),
    "WSL 2 with an RTX 3060": Machine(
        (RTX_3060,), "581.57", kernel="5.15.167.4-microsoft-standard-WSL2"
    ),
}


class Elsewhere(BaseHTTPRequestHandler):
    """The hub, which has nothing: what is in the cache has to do."""

    def do_GET(self) -> None:
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def make_cache(folder: Path) -> None:
    """The models of `make train`: config.json and tokenizer, and a file as large as the weights."""
    for _, name in MODELS:
        shape = shapes.shape_of(name)
        assert shape is not None
        place = folder / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = place / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(COMMIT)
        config = {
            "model_type": "qwen2",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "vocab_size": shape.vocabulary,
            "tie_word_embeddings": shape.tied,
            "max_position_embeddings": shape.context,
            "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
        }
        (snapshot / "config.json").write_text(json.dumps(config))
        add_tokenizer(snapshot)
        size = int(shape.weight_bytes())
        whole = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
        header = json.dumps({"model.weights": whole}).encode()
        with (snapshot / "model.safetensors").open("wb") as file:  # zeros that take no room
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)


class Simulated:
    """A machine in a folder, and what the commands say there."""

    def __init__(self, machine: Machine, folder: Path, shared: Path, endpoint: str):
        self.machine, self.folder = machine, folder
        programs = folder / "bin"
        programs.mkdir(parents=True)
        of_each = list(enumerate(machine.gpus))
        lines = {
            "listed": [f"GPU {i}: {gpu.name} (UUID: GPU-{i})" for i, gpu in of_each],
            "drivers": [f"{machine.driver}, {gpu.name}" for gpu in machine.gpus],
            "queried": [
                f"{gpu.name}, {machine.driver}, {gpu.memory_mb}, "
                f"{gpu.capability[0]}.{gpu.capability[1]}"
                for gpu in machine.gpus
            ],
        }
        for name, text in lines.items():
            (folder / name).write_text("\n".join(text) + "\n")
        (programs / "nvidia-smi").write_text(SMI.format(folder=folder))
        (programs / "nvidia-smi").chmod(0o755)
        told = {
            "gpus": [[g.name, g.memory_mb, g.free_mb, g.capability] for g in machine.gpus],
            "driver": machine.driver,
            "kernel": machine.kernel,
        }
        site = ROOT / "bench" / "site"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "UNSLOTHRL"))},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{site}:{ROOT}",
            "SIMULATED": json.dumps(told),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(shared / "hf"),
            "COLUMNS": "400",
        }
        self.mounts = "true"
        if machine.compat:  # in a mount namespace, beside what /usr/local has
            made = folder / "local" / COMPAT.relative_to("/usr/local")
            made.mkdir(parents=True)
            (made / "libcuda.so.1").touch()
            self.mounts = (
                f"mount -t overlay overlay -o lowerdir={folder}/local:/usr/local /usr/local"
            )

    def start(self, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, *arguments]
        if self.machine.compat:
            command = ["unshare", "-rm", "sh", "-c", f'{self.mounts} && exec "$@"', "sh", *command]
        return subprocess.Popen(
            command, env=self.environment, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def said(self, *arguments: str) -> str:
        return self.start(*arguments).communicate()[0]

    def check(self) -> tuple[bool, str]:
        """-> (whether set-up would go on, its faults or else its warnings)."""
        lines = self.said(str(ROOT / "tools" / "setup_env.py"), "--check").splitlines()
        faults = [line for line in lines if line.startswith(("driver: ", "card: ", "compiler: "))]
        warned = [line[8:] for line in lines if line.startswith("[setup] warning: ")]
        return not faults, "; ".join(faults or warned) or "ok"

    def doctor(self) -> str:
        checks = json.loads(self.said("-m", "unslothrl", "doctor", "--no-self-test", "--json"))
        wanted = ("GPU", "compiler")
        bad = [c for c in checks["checks"] if c["name"] in wanted and c["status"] != "ok"]
        return "; ".join(f"{c['status']}: {c['found']}: {c['remedy']}" for c in bad) or "ok"

    def plan(self, model: str) -> str:
        """GB that the fullest GPU holds, of GB that are usable."""
        words = ("plan", "--model", model, *self.machine.flags, "--json")
        text = self.said("-m", "unslothrl", *words)
        cards = json.loads(text.splitlines()[-1])["cards"]
        fullest = max(cards, key=lambda card: card["needed_mb"] / card["usable_mb"])
        return f"{fullest['needed_mb'] / 1024:.1f} of {fullest['usable_mb'] / 1024:.1f}"

    def train(self, problems: Path) -> tuple[dict, str]:
        """-> (its options as resolved, how far it came)."""
        words = ["--learner", "grpo", *self.machine.flags, "--dataset", str(problems)]
        words += ["--max_steps", "1", "--output_dir", str(self.folder / "runs")]
        process = self.start(str(ROOT / "train_distributed.py"), *words)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.strip() == STARTING:
                process.send_signal(signal.SIGINT)
                break
        lines += process.communicate()[0].splitlines()
        configs = list(self.folder.glob("runs/*/config.toml"))
        if STARTING not in lines or not configs:
            return {}, lines[-1] if lines else "nothing"
        return tomllib.loads(configs[0].read_text()), "starts"


def row(name: str, simulated: Simulated, problems: Path) -> str:
    goes_on, check = simulated.check()
    cells = [name, check]
    if not goes_on:
        return f"| {name} | {textwrap.shorten(check, 120, placeholder=' ...')} |{' - |' * 8}"
    options, ended = simulated.train(problems)
    if not options:
        return f"| {' | '.join(cells)} |{' - |' * 7} {ended} |"
    actors = options["number_of_actors"]
    who = f"{actors} actors" if actors > 1 else "1 actor" if actors else "learner"
    shares = [options["actor_gpu_usage"]] if actors else []
    if actors == 0 or options["learner_chunk_size"]:
        shares.insert(0, options["learner_gpu_usage"])
    cells += [
        options["model"].removeprefix("unsloth/").removesuffix("-bnb-4bit"),
        f"{who}, {options['engine']}",
        f"{options['number_of_learners']} ({options['backend']})",
        options["dtype"],
        ", ".join(f"{share:g}" for share in shares) if options["engine"] == "vllm" else "-",
        simulated.plan(options["model"]),
        simulated.doctor(),
        ended,
    ]
    return f"| {' | '.join(textwrap.shorten(cell, 30, placeholder=' ...') for cell in cells)} |"


def page() -> str:
    """docs/install.md with its table made anew."""
    with tempfile.TemporaryDirectory() as temporary, hub() as endpoint:
        shared = Path(temporary)
        make_cache(shared / "hf")
        problems = shared / "problems.jsonl"
        rows = [{"prompt": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(100)]
        problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = []
        for i, (name, machine) in enumerate(MACHINES.items()):
            lines.append(row(name, Simulated(machine, shared / str(i), shared, endpoint), problems))
            print(lines[-1], file=sys.stderr, flush=True)
    head, rule, _ = PAGE.read_text().rpartition(" --- |\n")
    return head + rule + "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
