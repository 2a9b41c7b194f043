"""Lists the results that are older than the code that they measure.

    python bench/stale.py

For each file of bench/results and of packages/answercheck/bench/results: the commit that was
measured (bench/facts.py records it) against the history of the paths that it measures. The exit
code is always 0.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ("bench/results", "packages/answercheck/bench/results")

RUN = ("unslothrl", "train_distributed.py", "requirements-cpu.txt")
CHECKER = "packages/answercheck/answercheck"
MEASURES = {  # result -> what it measures; the program that measures comes first
    "answers-cpu": ("packages/answercheck/bench/measure.py", CHECKER),
    "math-verify-cpu": (
        "packages/answercheck/bench/measure.py",
        "packages/answercheck/bench/math_verify_peer.py",
    ),
    "chain-cpu": ("bench/chain.py", *RUN),
    "compare-trl-cpu": ("bench/compare_trl.py", "bench/peer.py", *RUN),
    "embedded-cpu": ("bench/embedded.py", *RUN),
    "fault-matrix-cpu": (
        "bench/fault_matrix.py",
        "bench/injections.py",
        "bench/little_memory.py",
        "bench/small_runs.py",
        "bench/wire.py",
        *RUN,
    ),
    "faults-cpu": ("bench/faults.py", "tests/hosts.py", "tests/run_on_hosts.py", *RUN),
    "gpu-rehearsal-cpu": ("bench/gpu.py", "bench/on_card", "unslothrl", "requirements.txt"),
    "learner-cpu": ("bench/learner.py", "unslothrl/backends", "unslothrl/learners/learner.py"),
    "learners-cpu": (
        "bench/learners.py",
        "unslothrl/training/batching.py",
        "unslothrl/backends",
        "unslothrl/learners",
    ),
    "proof-cpu": (
        "bench/proof.py",
        "unslothrl/engines/readback.py",
        "unslothrl/engines/canary.py",
        "unslothrl/backends/readback.py",
        "unslothrl/weights/published.py",
    ),
    "rollout-cpu": ("bench/rollout.py", "unslothrl/engines", "unslothrl/actors/actor.py"),
    "survival-cpu": ("bench/survival.py", "tests/killed.py", "tests/runs_compared.py", *RUN),
    "sync-cpu": (
        "bench/sync.py",
        "unslothrl/engines/vllm.py",
        "unslothrl/weights",
        "unslothrl/records.py",
        "unslothrl/engines/readback.py",
    ),
}
NOT_REPEATED = {"unseen-first", "conditions"}  # a first one, and one of each commit


@dataclass(frozen=True)
class Report:
    """`commit` was measured; `commits` since then have changed what the result measures."""

    name: str
    commit: str = ""
    date: str = ""
    commits: int = 0
    problem: str = ""

    def line(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        if self.commits:
            since = f"since {self.commit}, {self.date}"
            return f"stale: {self.name}, {self.commits} commits to what it measures {since}"
        return f"fresh: {self.name}, {self.commit}, {self.date}"


def git(root: Path, *arguments: str) -> str | None:
    """-> what git prints, None where it fails."""
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def recorded(path: Path) -> tuple[str | None, str]:
    """(commit, date) of a result."""
    content = json.loads(path.read_text())
    content = content.get("facts", content)
    return content.get("commit"), content.get("date", "no date")


def report(root: Path, path: Path, paths: tuple[str, ...]) -> Report:
    commit, date = recorded(path)
    shallow = git(root, "rev-parse", "--is-shallow-repository") == "true"
    if commit is None and shallow:
        return Report(path.stem, problem=f"no commit in it ({date}), and this clone is shallow")
    if commit is None:  # the best guess: the commit that added the result
        commit = git(root, "log", "-1", "--format=%h", "--", str(path))
        date += ", no commit in it: that of the file is taken"
    if not commit:
        return Report(path.stem, problem=f"no commit in it, and it is not committed ({date})")
    clean = commit.removesuffix("-dirty")
    if git(root, "merge-base", "--is-ancestor", clean, "HEAD") is None:
        why = "this clone is shallow" if shallow else "it is of another branch"
        problem = f"{commit} is not in the history here ({why}): not compared"
        return Report(path.stem, problem=problem)
    if missing := [name for name in paths if not (root / name).exists()]:
        return Report(path.stem, problem=f"bench/stale.py names {missing[0]}, which is gone")
    since = git(root, "rev-list", "--count", f"{clean}..HEAD", "--", *paths)
    return Report(path.stem, commit, date, int(since or 0))


def reports(root: Path, measures: dict[str, tuple[str, ...]]) -> list[Report]:
    """A report for every result, by name."""
    listed = []
    for path in sorted(each for folder in RESULTS for each in (root / folder).glob("*.json")):
        if path.stem in measures:
            listed.append(report(root, path, measures[path.stem]))
        elif path.stem not in NOT_REPEATED:
            problem = "bench/stale.py does not say what it measures"
            listed.append(Report(path.stem, problem=problem))
    return listed


def main() -> int:
    if git(ROOT, "rev-parse", "HEAD") is None:
        print("results: no git history here, so their age is not known")
        return 0
    for each in reports(ROOT, MEASURES):
        print(each.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
