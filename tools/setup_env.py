"""Make .venv from nothing: choose the set, check the machine, download, install, remember.

    python tools/setup_env.py                  # what `make train` and `make test` call first
    python tools/setup_env.py --check          # only look: nothing is downloaded or written
    python tools/setup_env.py --set cpu        # instead of what the machine suggests

An NVIDIA card gets the GPU set (requirements.txt), other Linux x86-64 machines the CPU set
(requirements-cpu.txt), everything else the base dependencies of pyproject.toml. Every check that
fails is one line with what was found, what is needed and the mend; exit code 2. The standard
library is enough, and Python 3.8 can read this, so that an old Python can be told what is wrong.
The wheel holds this file and the locks, for setup_here.py.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

import machine
from machine import Fault, gigabytes

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCKS = {"gpu": ROOT / "requirements.txt", "cpu": ROOT / "requirements-cpu.txt"}
PROJECT_FILES = (ROOT / "pyproject.toml", ROOT / "setup.py")
STAMP = "unslothrl-setup.json"
TORCH_CPU_WHEELS = "https://download.pytorch.org/whl/cpu"  # PyTorch's own, tried last
NOT_FOUND = ("No matching distribution", "ResolutionImpossible")  # the second with constraints
FROM_LOCK = ("--no-deps", "--no-compile", "--only-binary", ":all:")


def say(text):
    print(f"[setup] {text}", flush=True)


def choose_set(wanted, cards, system, processor):
    """gpu, cpu, or base where the locks do not apply."""
    if system != "Linux" or processor not in ("x86_64", "AMD64"):
        return "base"
    return wanted or ("gpu" if cards else "cpu")


def read_header(text):
    """The `# key: value` lines at the top of a lock."""
    pairs = (line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# "))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and " " not in pair[0]}


def read_pins(text):
    """Name -> version of every line of a lock."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split("==") for line in lines)


def digest(*paths):
    """Of the lines that are no comments: a lock's header says nothing of what is installed."""
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    said = b"\n".join(line for line in lines if not line.startswith(b"#"))
    return hashlib.sha256(said).hexdigest()[:16]


def inputs_of(kind):
    """What an environment of that set is made from."""
    lock, project = digest(LOCKS.get(kind, PROJECT_FILES[0])), digest(*PROJECT_FILES)
    return {"set": kind, "lock": lock, "project": project}


def state(folder, inputs):
    """absent, foreign, interrupted, stale (other set or lock), moved (only the project), current"""
    if not folder.exists():
        return "absent"
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except FileNotFoundError:
        return "foreign"
    except ValueError:
        return "interrupted"
    if not stamp.get("complete"):
        return "interrupted"
    if any(stamp.get(name) != inputs[name] for name in ("set", "lock")):
        return "stale"
    if stamp.get("program") and not os.path.exists(stamp["program"]):
        return "stale"  # the Python below it was removed
    return "current" if stamp.get("project") == inputs["project"] else "moved"


def write_stamp(folder, **content):
    partial = folder / (STAMP + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, folder / STAMP)


def fresh(folder):
    """An empty folder that says it is ours and unfinished."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_stamp(folder, complete=False)


class Failed(Exception):
    """A command that did not work; its last lines are the message."""


def pip(program, *arguments, total=0):
    """Run pip; its hundreds of lines become a count, the last ones are kept in case it fails."""
    command = [program, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    tail, count = collections.deque(maxlen=25), 0  # type: tuple[collections.deque, int]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=dict(os.environ, PIP_USER="0"),
    ) as process:  # fmt: skip
        for line in process.stdout or ():
            tail.append(line)
            count += line.startswith("Collecting ")
            if total and line.startswith("Collecting ") and count % 40 == 0:
                say(f"  {count} of {total} packages")
    if process.returncode:
        raise Failed("".join(tail))


def install_builds(program, lock):
    """torch +cpu as pip is configured, else from PyTorch's own index; where that is out of reach,
    as behind a mirror of PyPI alone, the release itself with what it needs of CUDA."""
    for name, version in read_pins(lock.read_text()).items():
        if "+" not in version:
            continue
        pin = f"{name}=={version}"
        for place in ((), ("--index-url", TORCH_CPU_WHEELS)):
            try:
                pip(program, *FROM_LOCK, pin, *place)
                break
            except Failed as failure:
                if not any(said in str(failure) for said in NOT_FOUND):
                    raise
                say(f"pip does not find {pin} {f'at {place[1]}' if place else 'as configured'}")
        else:
            release = pin.partition("+")[0]
            say(f"installing {release} instead, which is some GB larger")
            pip(program, "--no-compile", "--only-binary", ":all:", release)


def install_pins(program, lock):
    """All but the builds."""
    found = read_pins(lock.read_text())
    pins = [f"{name}=={version}" for name, version in found.items() if "+" not in version]
    pip(program, *FROM_LOCK, *pins, total=len(pins))


READ_DEV = """
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"])
"""


def install_base(program):
    """pyproject.toml's own dependencies, resolved by pip, and the tools that the tests need."""
    command = [program, "-c", READ_DEV]
    tools = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pip(program, "setuptools>=77", *tools.split(), "-e", str(ROOT))


def install_project(program):
    pip(program, "--no-deps", "--no-build-isolation", "-e", str(ROOT))


def imports_of(kind, cards):
    """What a run imports, by process: vLLM and Unsloth patch what others have loaded before. The
    learner's backend chooses the folder that Unsloth writes its compiled code into."""
    processes = [["torch", "transformers", "peft", "bitsandbytes", "datasets", "ray"]]
    if kind != "base":
        processes[0].append("trl")
        processes.append(["vllm.entrypoints.llm"])
    if kind == "gpu" and cards:  # without a card it refuses to be imported
        processes.append(["unslothrl.backends.unsloth"])
    return processes


def first_import(program, kind, cards):
    """Each process's imports, which also compiles them; a warning where that fails."""
    say("  first import")
    environ = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    for names in map(", ".join, imports_of(kind, cards)):
        command = [program, "-W", "ignore", "-c", f"import {names}"]
        answer = subprocess.run(command, env=environ, capture_output=True)
        if answer.returncode:
            said = answer.stderr.decode(errors="replace").strip().splitlines()
            last = said[-1] if said else f"exit {answer.returncode}"
            say(f"warning: {names}: does not import here: {last:.300}")


def run_quietly(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stdout + done.stderr)


def create(folder, python, kind):
    """An environment with the packages of a set, without the project."""
    fresh(folder)
    say(f"creating {folder.name} with {python}")
    run_quietly(python, "-m", "venv", str(folder))
    if kind == "base":
        install_base(program_of(folder))
    else:
        install_builds(program_of(folder), LOCKS[kind])
        install_pins(program_of(folder), LOCKS[kind])


def program_of(folder):
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def finish(folder, kind):
    write_stamp(folder, complete=True, program=program_of(folder), **inputs_of(kind))


def pythons(path):
    """(folders, first): where to look for a Python, and the one to begin with. Where this runs in
    the very environment that may be made anew, as it does once that is activated, its base."""
    folders = [folder for folder in path.split(os.pathsep) if not is_within(folder, VENV)]
    base = getattr(sys, "_base_executable", None)  # below a virtual environment's
    return folders, base if base and is_within(sys.prefix, VENV) else sys.executable


def is_within(path, folder):
    path, folder = os.path.realpath(path or "."), os.path.realpath(str(folder))
    return path == folder or path.startswith(folder + os.sep)


def machine_faults(kind, cards, folder, python):
    """Of what an installation into `folder` needs; `python`: the Python there, if it is known."""
    faults = []
    if kind != "base":
        header = read_header(LOCKS[kind].read_text())
        faults += machine.libc_faults(*platform.libc_ver(), header["glibc"])
        faults += machine.disk_faults(machine.disk_needs(header, folder, os.environ))
        faults += machine.library_faults(kind)
    if kind == "gpu":
        faults += machine.card_faults(cards)
        faults += machine.cache_faults(os.environ)
        faults += machine.compiler_faults(python, os.environ) if python else []
    return faults


def check(kind, cards, now):
    """(python, faults): everything that can be known before the first download."""
    folders, first = pythons(os.environ.get("PATH", ""))
    python, fault = machine.find_python(folders, first, kind == "gpu")
    faults = ([fault] if fault else []) + machine_faults(kind, cards, VENV, python)
    if not os.access(str(ROOT), os.W_OK | os.X_OK):
        mend = "clone the repository into a folder of yours"
        faults.append(Fault("folder", f"{ROOT}, which cannot be written", "room for .venv", mend))
    if now == "foreign":
        found = f"a {VENV.name} that this program did not create"
        faults.append(Fault("folder", found, "none", "move it away, or remove it"))
    return python, faults


def describe(kind, cards, trouble):
    for card in cards:
        say(f"{card.name}, {card.memory_mb} MiB, driver {card.driver}")
    warnings = [*map(machine.card_warning, cards), machine.shared_memory_warning(kind)]
    for warning in filter(None, warnings):
        say(f"warning: {warning}")
    if trouble:
        say(f"nvidia-smi exists but does not work ({trouble}): no card is used")
    if kind == "base":
        here = f"{platform.system()} {platform.machine()}"
        say(f"{here}, no locked set: base dependencies, transformers engine, PEFT backend")
        return
    header = read_header(LOCKS[kind].read_text())
    download, installed = (int(header[key]) for key in ("download-bytes", "installed-bytes"))
    say(
        f"{kind.upper()} set, {LOCKS[kind].name}: {header['packages']} packages, "
        f"{gigabytes(download)} to download, {gigabytes(installed)} on disk"
    )


WHY_ANEW = {
    "interrupted": "the last install did not finish",
    "stale": "the lock or the set changed",
}


def refuse(faults):
    """Print them, a line each, or that there are none -> the exit code."""
    for fault in faults:
        print(machine.fault_line(fault), file=sys.stderr)
    if not faults:
        say("nothing prevents the installation")
    return 2 if faults else 0


def run(kind, cards, trouble, only_check):
    now = state(VENV, inputs_of(kind))
    if now == "current" and not only_check:
        say(f"{VENV.name} is up to date ({kind} set)")
    elif now == "moved" and not only_check:
        say("pyproject.toml changed: installing the project again")
        install_project(program_of(VENV))
        finish(VENV, kind)
    else:
        describe(kind, cards, trouble)
        python, faults = check(kind, cards, now)
        if faults or only_check:
            return refuse(faults)
        if now in WHY_ANEW:
            say(f"{WHY_ANEW[now]}: creating {VENV.name} again")
        started = time.time()
        create(VENV, python, kind)
        if kind != "base":
            install_project(program_of(VENV))
        first_import(program_of(VENV), kind, cards)
        finish(VENV, kind)
        say(f"done in {time.time() - started:.0f} s")
    return 0


def main(run, about):
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--set", choices=sorted(LOCKS), help="instead of what suits the machine")
    parser.add_argument("--check", action="store_true", help="download and write nothing")
    options = parser.parse_args()
    cards, trouble = ([], None) if options.set == "cpu" else machine.find_cards()
    os.environ.update(machine.library_path(cards, os.environ))  # of every process started below
    kind = choose_set(options.set, cards, platform.system(), platform.machine())
    try:
        return run(kind, cards, trouble, options.check)
    except Failed as failure:
        print(f"{failure}[setup] failed with the lines above: run again to redo", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[setup] interrupted: run again to redo; pip keeps its downloads", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(run, __doc__))
