"""Results that are older than what they measure, in a git repository made for the test."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEASURES = {"speed": ("code.py",), "memory": ("code.py", "other.py")}


@pytest.fixture
def stale(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import stale

    return stale


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *who, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "--short", "HEAD")


def result(folder: Path, name: str, **content) -> None:
    (folder / "bench" / "results" / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def repository(tmp_path) -> Path:
    folder = tmp_path / "repository"
    (folder / "bench" / "results").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


def test_commits_to_what_a_result_measures_are_counted(stale, repository):
    first = commit(repository, code_py="1", other_py="1")
    result(repository, "speed", commit=first, date="2026-11-21")
    result(repository, "memory", facts={"commit": f"{first}-dirty", "date": "2026-11-21"})
    commit(repository, readme_md="1")  # measured by none
    assert [one.commits for one in stale.reports(repository, MEASURES)] == [0, 0]
    commit(repository, other_py="2")
    commit(repository, code_py="2")
    memory, speed = stale.reports(repository, MEASURES)
    assert (memory.commits, speed.commits) == (2, 1)
    assert speed.line() == (
        f"stale: speed, 1 commits to what it measures since {first}, 2026-11-21"
    )


def test_every_committed_result_has_paths_that_exist(stale):
    folders = [ROOT / each for each in stale.RESULTS]
    names = {path.stem for folder in folders for path in folder.glob("*.json")}
    assert names <= {*stale.MEASURES, *stale.NOT_REPEATED}
    for paths in stale.MEASURES.values():
        assert [path for path in paths if not (ROOT / path).exists()] == []


def test_facts_name_the_commit(stale, repository, monkeypatch):
    """Other results that were written meanwhile do not make it another."""
    import facts

    monkeypatch.setattr(facts, "__file__", str(repository / "bench" / "facts.py"))
    first = commit(repository, code_py="1")
    result(repository, "speed")
    assert facts.facts()["commit"] == first
    (repository / "code.py").write_text("2")
    assert facts.facts()["commit"] == f"{first}-dirty"
