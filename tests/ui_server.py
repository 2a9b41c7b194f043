"""`unslothrl ui` as a process, for its tests."""

import signal
import subprocess
import sys
from pathlib import Path

from unslothrl.commands import cli
from unslothrl.tracking.run_folder import is_held, stop_holder


class Server:
    """`unslothrl ui` in a folder. `url`: the address that it has printed."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __enter__(self) -> "Server":
        self.log = (self.folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unslothrl", "ui"], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.token = self.url.partition("token=")[2]
        return self

    def stop(self) -> str:
        """-> what it has written to stderr"""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(30) == cli.INTERRUPTED
        self.log.seek(0)
        return self.log.read()

    def __exit__(self, *_: object) -> None:
        for run in (self.folder / "runs").glob("*"):  # of a test that has failed
            if is_held(run):
                stop_holder(run)
        self.process.kill()
        self.process.wait()
        self.log.close()
