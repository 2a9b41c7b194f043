"""Execute notebooks from a clean kernel: `python tools/notebooks.py [--write] [NAME ...]`.

Run by .venv's Python with .venv/peers/notebooks (tools/peers.py installs it) on PYTHONPATH, which
the kernel has too. Each is executed in an empty folder; its seconds are printed. `--write` keeps
the outputs in notebooks/, with a hash of the cells that they are of; of a report that a cell shows
it keeps the text alone, as no page that hosts notebooks shows an embedded page.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
NAMES = ("from_trl", "quickstart", "tool_user", "your_own_reward")
KEY = "unslothrl"  # of the notebook's metadata: {"cells": hash, "cpu_s": of the execution}
CELL_S = 900  # that a cell may take, on a busy machine


def read(name: str) -> dict[str, Any]:
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())


def code_hash(notebook: dict[str, Any]) -> str:
    """Of the code of all cells: outputs of other cells are stale."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:16]


def execute(name: str, folder: Path) -> tuple[dict[str, Any], float, float]:
    """-> (the notebook with its outputs, its seconds, those of CPU). Raises what a cell raises;
    `folder` is where it works, and must be empty."""
    import nbclient
    import nbformat

    os.environ["IPYTHONDIR"] = str(folder / ".ipython")  # no profile of the user's
    own = str(Path(sys.executable).parent)  # as if activated: commands are named, not their paths
    os.environ["PATH"] = os.pathsep.join([own, os.environ["PATH"]])
    os.environ["XDG_CACHE_HOME"] = str(folder / ".cache")
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    started, cpu = time.monotonic(), sum(os.times()[2:4])  # of processes that have ended
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,  # else a line that was printed in two parts is shown as two
    )
    client.execute()
    seconds = time.monotonic() - started
    said = nbformat.writes(notebook).replace(f"{folder.resolve()}/", "")
    return json.loads(said), seconds, sum(os.times()[2:4]) - cpu


def write(name: str, notebook: dict[str, Any], cpu_s: float) -> None:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if "<iframe" in "".join(output.get("data", {}).get("text/html", "")):
                del output["data"]["text/html"]
    notebook["metadata"][KEY] = {"cells": code_hash(notebook), "cpu_s": round(cpu_s)}
    notebook["metadata"]["language_info"] = {"name": "python"}  # not which patch version
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (NOTEBOOKS / f"{name}.ipynb").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help="not given: all")
    parser.add_argument("--write", action="store_true", help="keep the outputs")
    arguments = parser.parse_args()
    for name in arguments.name or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            notebook, seconds, cpu_s = execute(name, Path(folder))
        print(f"{name}: {seconds:.0f} s, {cpu_s:.0f} s of CPU", flush=True)
        if arguments.write:
            write(name, notebook, cpu_s)


if __name__ == "__main__":
    main()
