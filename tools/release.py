"""Make a release in dist/: `make release`, or `make release VERSION=0.2.0`.

    python tools/release.py [--version 0.2.0] [--python python3.12 ...]

In a clone of the last commit it sets the version, dates the changelog's heading and builds sdist
and wheel. The wheel is then tried in an empty environment for each Python, outside of the clone:
help, plan, recipes, the demo, `unslothrl setup --set cpu` and a run over Ray and vLLM.
Only then is this tree edited. Nothing is committed or sent: the commands for that are printed.

Needs a clean tree, 8 GB of disk and pip's indexes; takes about ten minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = {  # where the version is written
    "pyproject.toml": r'(?<=^version = ").+(?="$)',
    "unslothrl/__init__.py": r'(?<=^__version__ = ").+(?="$)',
    "CITATION.cff": r"(?<=^version: ).+$",
}
UNRELEASED = "## Unreleased\n"
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
TRAIN = "train --model embedded --dataset embedded --learner grpo --run_name ray"
TRIED = (
    "--version", "--help", "recipes", "plan --model embedded", "setup --check", "demo",
    "setup --set cpu",
    f"{TRAIN} --cluster ray --engine vllm --number_of_actors 1 --max_steps 2",
)  # fmt: skip


def versions(root: pathlib.Path) -> dict[str, str]:
    """File -> the version that is written there."""
    found = {}
    for name, pattern in PLACES.items():
        (found[name],) = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
    return found


def dated(changelog: str, version: str, day: datetime.date) -> str:
    """What is unreleased becomes the version's; nothing is unreleased then. ValueError where there
    is nothing, or a section of that version."""
    before, heading, after = changelog.partition(UNRELEASED)
    section = after.partition("\n## ")[0]
    if not heading or not section.strip():
        raise ValueError("CHANGELOG.md has nothing under `## Unreleased`")
    if re.search(rf"^## {re.escape(version)}( |$)", changelog, re.MULTILINE):
        raise ValueError(f"CHANGELOG.md has a section {version}: set VERSION to another")
    return f"{before}{heading}\n## {version} - {day}\n{after}"


def edit(root: pathlib.Path, version: str, day: datetime.date) -> None:
    versions(root)  # each is written once
    for name, pattern in PLACES.items():
        text = (root / name).read_text()
        (root / name).write_text(re.sub(pattern, version, text, flags=re.MULTILINE))
    changelog = root / "CHANGELOG.md"
    changelog.write_text(dated(changelog.read_text(), version, day))


def build(root: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """sdist into a folder, and the wheel from that sdist. -> the wheel"""
    sdist = [sys.executable, "-c", SDIST, str(folder)]
    done = subprocess.run(sdist, cwd=root, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(folder), *map(str, folder.glob("*.tar.gz"))], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_wheel(wheel: pathlib.Path, folder: pathlib.Path, python: str = sys.executable) -> None:
    """Installs it into an empty environment in an empty folder and uses it from there.
    CalledProcessError, AssertionError."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words: str) -> None:
        print("+", *words, flush=True)
        subprocess.run(words, cwd=folder, env=environ, check=True)

    call(python, "-m", "venv", "environment")
    installed, program = "environment/bin/python", "environment/bin/unslothrl"
    call(installed, "-m", "pip", "install", "-q", str(wheel))
    for words in TRIED:
        call(program, *words.split())
    summaries = (folder / "runs").glob("*/summary.json")
    statuses = [json.loads(file.read_text())["status"] for file in summaries]
    assert statuses == ["finished"] * 2, statuses
    code = "import answercheck, unslothrl; print(answercheck.__file__, unslothrl.__file__)"
    found = subprocess.check_output([installed, "-c", code], cwd=folder, env=environ, text=True)
    assert all(file.startswith(str(folder)) for file in found.split()), found


def git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True)


def release(version: str, pythons: list[str]) -> None:
    if changed := git("status", "--porcelain"):
        sys.exit(f"commit these first, or remove them:\n{changed}")
    day = datetime.date.today()
    with tempfile.TemporaryDirectory(prefix="unslothrl-release-") as work:
        clone, built = pathlib.Path(work, "clone"), pathlib.Path(work, "dist")
        git("clone", "-q", str(ROOT), str(clone))
        edit(clone, version, day)
        wheel = build(clone, built)
        for number, python in enumerate(pythons):
            folder = pathlib.Path(work, f"tried-{number}")
            folder.mkdir()
            try_wheel(wheel, folder, python)
        (ROOT / "dist").mkdir(exist_ok=True)
        for file in built.iterdir():
            (ROOT / "dist" / file.name).write_bytes(file.read_bytes())
    edit(ROOT, version, day)
    print(
        f"dist/{wheel.name} works. To publish it:\n"
        f"    git commit -am 'Release {version}' && git tag -a v{version} -m v{version}\n"
        "    git push --follow-tags\n"
        f"    python -m twine upload dist/unslothrl-{version}*"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--version", help="default: the one that is written in pyproject.toml")
    parser.add_argument(
        "--python", nargs="+", default=[sys.executable], help="in whose environments it is tried"
    )
    options = parser.parse_args()
    try:
        release(options.version or versions(ROOT)["pyproject.toml"], options.python)
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
