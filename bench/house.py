"""The size of the house: lines, files, `except`, what `train` imports, what a step goes through.

    python bench/house.py [--tree FOLDER] [--run]

--tree is a checkout of any commit, this one by default. --run trains three small steps there, once
in Ray's processes and once in one process, for the rows that only a run can say. A step is what
`Trainer.step` calls in its own thread, from its tasks to the new version that is published; what is
written and shown of it afterwards is not counted. It is the third, as the first batch with a signal
is proved. Its records are the dataclasses that are made in it, in any thread, and hold text, token
ids or arrays. At 44ba178 that gives 67 files and 24 types; a count by hand had found 65 and 27.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTION = re.compile(r"^ {2}(--\w+)", re.MULTILINE)
TRAIN = ["--learner", "grpo", "--max_steps", "3", "--batch_size", "2", "--num_candidates", "2",
         "--eval_every", "0", "--dataset"]  # fmt: skip
# Before anything else in each process of a run, named by PYTHONPATH.
MODULES_OF_A_PROCESS = """
import os, sys, threading, time

def watch():
    seen = 0
    while True:
        here = sorted(name for name in list(sys.modules) if name.partition(".")[0] == "unslothrl")
        if len(here) != seen:
            seen = len(here)
            with open(os.path.join(os.environ["HOUSE_OUT"], str(os.getpid())), "w") as file:
                file.write("\\n".join(here))
        time.sleep(0.2)

threading.Thread(target=watch, daemon=True).start()
"""
# The files whose functions the third step calls, and the package's dataclasses that it makes.
ONE_STEP = """
import dataclasses, json, os, runpy, sys, threading
files, records, steps, inside = set(), set(), [], []

def holds_data(value):
    if dataclasses.is_dataclass(value):
        return any(holds_data(getattr(value, f.name, None)) for f in dataclasses.fields(value))
    if isinstance(value, dict):
        return any(map(holds_data, value.values()))
    return hasattr(value, "__len__") or hasattr(value, "dtype")

def profile(frame, event, argument):
    code = frame.f_code
    if code.co_filename.endswith("training/trainer.py"):
        if (code.co_name, event) == ("step", "call"):
            steps.append(1)
            inside[:] = [1] if len(steps) == 3 else []
        elif (code.co_name, event) == ("publish", "return"):
            inside.clear()
    if not inside or event != "call":
        return
    if "/unslothrl/" in code.co_filename and threading.current_thread() is main:
        files.add(code.co_filename)
    elif code.co_filename == "<string>" and code.co_name == "__init__":
        made = frame.f_locals["self"]
        kind = type(made)
        if kind.__module__.startswith("unslothrl") and dataclasses.is_dataclass(kind):
            given = [each for name, each in frame.f_locals.items() if name != "self"]
            if any(map(holds_data, given)):
                records.add(kind.__name__)

main = threading.current_thread()
threading.setprofile(profile)
sys.setprofile(profile)
try:
    runpy.run_path("train_distributed.py", run_name="__main__")
finally:
    sys.setprofile(None)
    threading.setprofile(None)
    with open(os.environ["HOUSE_OUT"], "w") as file:
        json.dump({"files": sorted(files), "records": sorted(records)}, file)
"""


def lines(files: list[Path]) -> int:
    return sum(file.read_text(errors="replace").count("\n") for file in files)


def handlers(tree: ast.AST) -> tuple[int, int]:
    """-> (`except` clauses, uses of `contextlib.suppress`)"""
    clauses = suppressed = 0
    for node in ast.walk(tree):
        clauses += isinstance(node, ast.ExceptHandler)
        if isinstance(node, ast.withitem) and isinstance(node.context_expr, ast.Call):
            suppressed += ast.unparse(node.context_expr.func).endswith("suppress")
    return clauses, suppressed


def counted(tree: Path) -> dict[str, float]:
    package = sorted((tree / "unslothrl").rglob("*.py"))
    faces = [*package]
    for end in ("js", "css", "html"):
        faces += (tree / "unslothrl").rglob(f"*.{end}")
    handled = [handlers(ast.parse(file.read_text())) for file in package]
    clauses, suppressed = (sum(each) for each in zip(*handled, strict=True))
    python = [tree / name for name in ("tools", "examples")]
    found = {
        "package, lines of Python": lines(package),
        "package, lines with .js, .css, .html": lines(faces),
        "package, files": len(package),
        "except per 100 lines": round(100 * clauses / lines(package), 2),
        "except and suppress per 100 lines": round(
            100 * (clauses + suppressed) / lines(package), 2
        ),
        "root modules": len([each for each in package if each.parent.name == "unslothrl"]),
        "tools and examples, lines of Python": lines(
            [each for folder in python for each in folder.rglob("*.py")]
        ),
        "tests, lines": lines(list((tree / "tests").rglob("*.py"))),
        "bench, lines": lines(list((tree / "bench").rglob("*.py"))),
        "pages": len(list((tree / "docs").rglob("*.md"))),
    }
    inits = (tree / "packages").glob("*/*/__init__.py")
    found["packages, lines of Python"] = lines(
        [f for each in inits for f in each.parent.glob("*.py")]
    )
    help_all = subprocess.run(
        [sys.executable, "-m", "unslothrl", "train", "--help_all"],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found["options of train"] = len(set(OPTION.findall(help_all)))
    return found


def run(tree: Path, scratch: Path) -> dict[str, object]:
    """What two steps import, driver, actor and learner apart from each other, and go through."""
    seen, step = scratch / "seen", scratch / "step.json"
    seen.mkdir()
    (scratch / "sitecustomize.py").write_text(MODULES_OF_A_PROCESS)
    (scratch / "one_step.py").write_text(ONE_STEP)
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    data = scratch / "sums.jsonl"
    sums = [{"question": f"{a} + {a + 1} =", "answer": str(2 * a + 1)} for a in range(1, 41)]
    data.write_text("".join(json.dumps(each) + "\n" for each in sums))
    environment = {**os.environ, "HOUSE_OUT": str(seen), "PYTHONPATH": f"{scratch}:{path}"}
    for program, settings, more in (
        (["train_distributed.py"], {}, []),
        ([str(scratch / "one_step.py")], {"HOUSE_OUT": str(step), "PYTHONPATH": path},
         ["--cluster", "local"]),
    ):  # fmt: skip
        subprocess.run(
            [sys.executable, *program, *TRAIN, str(data), *more, "--run_name", f"house-{len(more)}"],  # noqa: E501
            cwd=tree, env={**environment, **settings}, stdout=sys.stderr, check=True,
        )  # fmt: skip
    modules = {name for file in seen.iterdir() for name in file.read_text().split()}
    paths = [tree / name.replace(".", "/") for name in modules]
    files = [file for each in paths for file in (each.with_suffix(".py"), each / "__init__.py")
             if file.exists()]  # fmt: skip
    found = json.loads(step.read_text())
    return {
        "train, modules": len(files),
        "train, lines": lines(files),
        "a step, files": len(found["files"]),
        "a step, lines of them": lines([Path(each) for each in found["files"]]),
        "a step, record types": len(found["records"]),
        "records": found["records"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    found: dict[str, object] = dict(counted(given.tree))
    if given.run:
        with tempfile.TemporaryDirectory() as scratch:
            found |= run(given.tree.resolve(), Path(scratch))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
