"""The command line in processes of its own: asked, started for a run, or kept for questions."""

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unslothrl.config.values import off, unknown
from unslothrl.errors import UserError
from unslothrl.runs.resume import COMMANDS
from unslothrl.system.variables import error_in, process
from unslothrl.text import shown

OWN = ("output_dir", "resume")  # options that the page sets itself
SHOWN = 20_000  # bytes of an output
IDLE_S = 600.0  # after which the process that answers is ended: it holds memory
LONGEST = 1 << 24  # bytes of a line
SWITCHES = {"": True, "true": True, "false": False}  # a switch may be written alone


def flags(command: str, options: Mapping[str, Sequence[str]]) -> list[str]:
    """The flags of options, spelled as on the command line. UserError for one that the command has
    not, or that is the page's own."""
    table, words = COMMANDS[command], []
    for spelled, values in options.items():
        name = next((each for each in table.options if spelled in table.spellings(each)), None)
        if name in OWN:
            raise UserError(f"{name} is the page's own: leave it out")
        if name is None:
            raise UserError(unknown(spelled, table.flags, command))
        for each in values:
            is_on = SWITCHES.get(each.lower())
            if table.kind(name) is not bool:
                words.append(f"--{spelled}={each}")
            elif is_on is None:
                raise UserError(f"{spelled} must be true or false, got {shown(each)}: set true")
            else:
                words.append(f"--{spelled if is_on else off(spelled)}")
    return words


def asked(*words: str) -> str:
    """What a command prints. UserError where it refuses or fails."""
    done = subprocess.run(**process(words), capture_output=True)
    if done.returncode:
        raise UserError(error_in(done.stderr.splitlines()) or f"exit code {done.returncode}")
    return str(done.stdout)


class Training:
    """The process of a run that was started or resumed here. In a session of its own, and writing
    into a file without a name, it continues when this one ends."""

    def __init__(self, words: Sequence[str]):
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this is kept
        to_file: Any = {"stdout": self.file, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(**process(words), **to_file, start_new_session=True)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """The end of what it has printed."""
        begin = max(0, os.fstat(self.file.fileno()).st_size - SHOWN)
        return os.pread(self.file.fileno(), SHOWN, begin).decode(errors="replace")

    @property
    def error(self) -> str:
        """Why it has failed; "" while it runs, and where it has ended well or was stopped."""
        code = self.process.poll()
        if code in (None, 0, -signal.SIGTERM) or code > 128:
            return ""
        return error_in(self.output.splitlines()) or f"the process ended with exit code {code}"


class Answering:
    """`unslothrl chat --json`: a process that keeps one adapter and its base for more questions."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # one answer at a time
        self.adapter: Path | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.idle: asyncio.TimerHandle | None = None

    async def answer(self, adapter: Path, conversation: str) -> AsyncIterator[str]:
        """Lines of JSON: see `commands.chat.answer_lines`. The process is ended where whoever reads
        them has gone before the last."""
        async with self.turn:
            if self.idle is not None:
                self.idle.cancel()
            if adapter != self.adapter or not self.process or self.process.returncode is not None:
                self.end()
                given = process(["chat", str(adapter), "--json"])
                piped: Any = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
                self.process = await asyncio.create_subprocess_exec(
                    *given["args"], env=given["env"], **piped, limit=LONGEST, start_new_session=True
                )
                self.adapter = adapter
            talking = self.process
            assert talking and talking.stdin and talking.stdout and talking.stderr
            is_done = False
            try:
                talking.stdin.write(conversation.encode() + b"\n")
                while not is_done and (line := await talking.stdout.readline()):
                    is_done = "done" in json.loads(line)
                    yield line.decode()
                if not is_done:
                    said = (await talking.stderr.read()).decode(errors="replace").splitlines()
                    error = error_in(said) or "the process that answers has ended"
                    yield json.dumps({"done": True, "error": error}) + "\n"
            finally:
                if not is_done:
                    self.end()
            self.idle = asyncio.get_running_loop().call_later(IDLE_S, self.end)

    def end(self) -> None:
        """A run needs the memory, or nobody asks."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        self.process = None
