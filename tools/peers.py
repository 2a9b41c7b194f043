"""Install another system for comparisons: `python tools/peers.py trl`, run by .venv's Python.

Goes into .venv/peers/<name>, which only a process that wants it puts on its path; what it needs
besides is in .venv already. The versions stand in pyproject.toml under [tool.unslothrl.peers].
"""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["unslothrl"]["peers"]
DONE = "unslothrl-peer.json"  # written last: a folder without it was interrupted


def install(name: str) -> Path:
    """-> the folder of the peer, installed now or before."""
    folder, wanted = Path(sys.prefix) / "peers" / name, json.dumps(PEERS[name])
    if (folder / DONE).is_file() and (folder / DONE).read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    print(f"[peers] {', '.join(PEERS[name])} into {folder}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", str(folder), *PEERS[name]], check=True)
    (folder / DONE).write_text(wanted)
    return folder


if __name__ == "__main__":
    install(sys.argv[1])
