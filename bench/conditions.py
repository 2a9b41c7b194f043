"""`make quick` and `make test` on machines unlike this one: another processor, user, Python, path.

    python bench/conditions.py [NAME ...] [--targets quick test]

Each condition runs in a clone of HEAD; those of the same user, Python and path share it and its
environment, which `make setup` makes or checks under that condition. A second call goes on with
what is missing for this commit. As root, for another user can only then be had. Writes
bench/results/conditions.json.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from facts import facts

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "results" / "conditions.json"
SCRATCH = Path("/var/tmp/unslothrl-conditions")
USER = "unslothrl-tests"
OTHER_PYTHON = next(filter(None, map(shutil.which, ("python3.12", "python3.13"))), None)
# Name -> what of the processor, PATH, user, Python, cores, path and number of copies is otherwise.
CONDITIONS: dict[str, dict[str, str]] = {
    "as it is": {},
    "baseline processor": {"capability": "default"},
    "AVX2": {"capability": "avx2"},
    "AVX-512": {"capability": "avx512"},
    "no bubblewrap": {"hidden": "bwrap"},
    "another user": {"user": USER},
    "another Python": {"python": OTHER_PYTHON or ""},
    "one core": {"cores": "0"},
    "a path with a space": {"folder": "a path"},
    "twice at once": {"copies": "2"},
    "another user, no bubblewrap, one core": {"user": USER, "hidden": "bwrap", "cores": "1"},
    "another Python, baseline processor, a path with a space": {
        "python": OTHER_PYTHON or "", "capability": "default", "folder": "a path",
    },
}  # fmt: skip


def lacking(condition: dict[str, str]) -> str | None:
    """Why this machine cannot have it."""
    capability, processor = condition.get("capability", ""), Path("/proc/cpuinfo").read_text()
    if capability.startswith("avx") and capability not in processor:
        return f"the processor lacks {capability}"
    if capability == "avx2" and "avx512" not in processor:
        return "as it is, which is AVX2 on this processor"
    if condition.get("python") == "":
        return "no other Python"
    if "user" in condition and os.geteuid() != 0:
        return "only root can become another user"
    return None


def without(name: str, folder: Path) -> str:
    """-> a PATH on which a program is not found: of folders that have it, all else is linked."""
    parts = []
    for number, part in enumerate(os.environ["PATH"].split(os.pathsep)):
        if Path(part, name).exists():
            linked = folder / f"bin-{number}"
            shutil.rmtree(linked, ignore_errors=True)
            linked.mkdir()
            for each in Path(part).iterdir():
                if each.name != name:
                    (linked / each.name).symlink_to(each)
            part = str(linked)
        parts.append(part)
    return os.pathsep.join(parts)


def command(condition: dict[str, str], target: str, home: Path) -> list[str]:
    words = ["env", f"HOME={home}"]
    if "user" in condition:
        words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *words]
    if "cores" in condition:
        words = ["taskset", "--cpu-list", condition["cores"], *words]
    if "capability" in condition:
        words.append(f"ATEN_CPU_CAPABILITY={condition['capability']}")
    if "hidden" in condition:
        words.append(f"PATH={without(condition['hidden'], home)}")
    usual = "/usr/bin/python3" if "user" in condition else sys.executable  # root's own is hidden
    python = condition.get("python") or usual
    return [*words, "make", target, f"PYTHON={Path(python).resolve()}"]


def clone(condition: dict[str, str], number: int) -> tuple[Path, Path]:
    """-> (home, a clone of HEAD in it), made or brought up to date."""
    kind = "-".join(filter(None, (condition.get("user"), condition.get("python")))) or "usual"
    home = SCRATCH / f"{kind.replace('/', '_')}-{number}"
    folder = home / condition.get("folder", "unslothrl")
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    else:
        trust = ("git", "-c", f"safe.directory={folder}", "-C", folder)
        subprocess.run([*trust, "fetch", "-q", ROOT, "HEAD"], check=True)
        subprocess.run([*trust, "reset", "-q", "--hard", "FETCH_HEAD"], check=True)
    if "user" in condition:
        subprocess.run(["useradd", "--no-create-home", USER], stderr=subprocess.DEVNULL)
        subprocess.run(["chown", "-R", f"{USER}:{USER}", home], check=True)
    return home, folder


def measure(name: str, targets: list[str]) -> dict:
    """-> target -> seconds, counts and the tests that failed."""
    condition, found = CONDITIONS[name], {}
    clones = [clone(condition, number) for number in range(int(condition.get("copies", "1")))]
    for target in ("setup", *targets):
        started = time.monotonic()
        running, logs = [], []
        for home, folder in clones:
            logs.append(SCRATCH / f"{name}, {target}-{len(logs)}.log")
            with logs[-1].open("w") as log:
                words = command(condition, target, home)
                running.append(subprocess.Popen(words, cwd=folder, stdout=log, stderr=log))
        codes = [each.wait() for each in running]
        text = "\n".join(log.read_text() for log in logs)
        found[target] = {
            "seconds": round(time.monotonic() - started),
            "passed": not any(codes),
            "summary": re.findall(r"^=+ (\d+ .*) in .*=+$", text, re.M),
            "failed": re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of: {'; '.join(CONDITIONS)}")
    parser.add_argument("--targets", nargs="*", default=["quick", "test"])
    given = parser.parse_args()
    here = facts(("torch", "pytest"))
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in given.names or CONDITIONS:
        before = results.get(name, {})
        if before.get("commit") == here["commit"] and not given.names:
            continue
        reason = lacking(CONDITIONS[name])
        found = {"lacking": reason} if reason else measure(name, given.targets)
        results = json.loads(RESULT.read_text()) if RESULT.exists() else {}  # two cores, two calls
        results[name] = {"commit": here["commit"], "date": here["date"], **found}
        print(name, json.dumps(results[name]), flush=True)
        RESULT.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
