"""Execute notebooks from a clean kernel: `python tools/notebooks.py [--write] [NAME ...]`.

Run by .venv's Python with .venv/peers/notebooks on its path (tools/peers.py installs it). Each is
executed in an empty folder, with this Python as its kernel; its seconds are printed. `--write`
keeps the outputs in notebooks/, with a hash of the cells that they are of.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
KEY = "unslothrl"  # of the notebook's metadata: {"cells": hash, "cpu_s": of the execution}
CELL_S = 900  # that a cell may take, on a busy machine


def names() -> list[str]:
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


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
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    started, cpu = time.monotonic(), cpu_of_children()
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
    return json.loads(nbformat.writes(notebook)), seconds, cpu_of_children() - cpu


def cpu_of_children() -> float:
    """Seconds of CPU of every process that was started here and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write(name: str, notebook: dict[str, Any], cpu_s: float) -> None:
    notebook["metadata"][KEY] = {"cells": code_hash(notebook), "cpu_s": round(cpu_s)}
    notebook["metadata"]["language_info"] = {"name": "python"}  # not which patch version
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (NOTEBOOKS / f"{name}.ipynb").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help="not given: all")
    parser.add_argument("--write", action="store_true", help="keep the outputs")
    arguments = parser.parse_args()
    for name in arguments.name or names():
        with tempfile.TemporaryDirectory() as folder:
            notebook, seconds, cpu_s = execute(name, Path(folder))
        print(f"{name}: {seconds:.0f} s, {cpu_s:.0f} s of CPU", flush=True)
        if arguments.write:
            write(name, notebook, cpu_s)
    return 0


if __name__ == "__main__":
    peers = Path(sys.prefix) / "peers" / "notebooks"
    if str(peers) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # the kernel's too
        paths = filter(None, (os.environ.get("PYTHONPATH"), str(peers)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)
    sys.exit(main())
