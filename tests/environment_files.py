"""Environments in files, as users write them, and what plays episodes with them."""

import asyncio
import functools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from unslothrl.actors.episodes import Played, Rules, play
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.embedded import BASE
from unslothrl.environments.host import Host, Setup
from unslothrl.records import Completion, Request, Sampling, Task
from unslothrl.weights.base_model import load_tokenizer

END = 2  # the embedded base's end of a turn
LAST: list[Host] = []
ECHO = '''
class Echo:
    """Says what it heard, until it hears "bye"."""

    max_turns = 3

    def __init__(self, answer="you"):
        self.answer = answer

    def reset(self, task, seed):
        self.seed = seed

    async def step(self, action):
        return f"{self.answer}: {action} {self.seed}", float(len(action)), action == "bye"
'''


@functools.cache
def tokenizer():
    """The embedded base's."""
    return load_tokenizer(BASE)


def ids_of(text: str) -> tuple[int, ...]:
    """The tokens of a text, special ones as they are written."""
    return tuple(tokenizer()([text], add_special_tokens=False)["input_ids"][0])


class Script:
    """Draws replies in turn, and keeps the requests. "$" at the end is the sampled end."""

    def __init__(self, *replies: str, versions: Sequence[int] = (3, 4, 5)):
        self.replies, self.versions, self.requests = list(replies), list(versions), []

    async def draw(self, request) -> Completion:
        self.requests.append(request)
        text = self.replies.pop(0)
        ids = ids_of(text.removesuffix("$")) + (END,) * text.endswith("$")
        ids = ids[: request.sampling.max_new_tokens]
        reason = "stop" if ids[-1] == END else "length"
        version = self.versions.pop(0) if self.versions else 9
        return Completion.drawn(ids, (-0.5,) * len(ids), reason, version)


def asked(text: str, messages: Sequence[tuple[str, str]] = ()) -> Task:
    """A task of one question, rendered as the embedded base reads it."""
    turns = tuple(messages) or (("user", text),)
    prompt = tokenizer().apply_chat_template(
        [{"role": role, "content": content} for role, content in turns],
        tokenize=False,
        add_generation_prompt=True,
    )
    return Task("a", text, "7", prompt, ids_of(prompt), {"level": 2}, turns)


def play_with(
    setup: Setup,
    script: Script,
    *,
    most: int = 200,
    turn: int = 100,
    rules: Rules | None = None,
    of: Task | None = None,
    seed: int = 5,
    follows_newest: bool = False,
) -> Played:
    """An episode over a real host, which the next one uses too where it is of the same set-up."""
    host = started(setup)
    sampling = Sampling(1.0, 1.0, 0, turn, most)
    task = of or asked("hello")
    first = Request("0/1", task.prompt_ids, 77, sampling, follows_newest)
    dialogue = TemplateDialogue(tokenizer())
    return asyncio.run(play(task, first, seed, host, script.draw, dialogue, rules or Rules()))


def started(setup: Setup) -> Host:
    """It takes seconds where tools have schemas."""
    if not (LAST and LAST[0].setup == setup):
        ended()
        LAST.append(Host(setup))
    LAST[0].start()
    return LAST[0]


def ended() -> None:
    while LAST:
        LAST.pop().close()


def written(folder: Path, source: str, name: str = "mine.py") -> str:
    """-> the path of a file with that source."""
    path = folder / name
    if path.exists() and path.read_text() != source:
        ended()  # which has read the other
    path.write_text(source)
    return str(path)


def rows_in(folder: Path, rows: Iterable[dict], name: str = "rows.jsonl") -> str:
    """-> the path of a file with those rows."""
    return written(folder, "".join(json.dumps(row) + "\n" for row in rows), name)


def tool(signature: str, body: str) -> str:
    """-> the source of a function, with the docstring that its schema is made of."""
    names = re.findall(r"(\w+):", signature)
    described = "".join(f"        {name}: What is given.\n" for name in names)
    return f'{signature}:\n    """\n    A tool.\n\n    Args:\n{described}    """\n    {body}\n'


def call(tool: str, /, **arguments) -> str:
    """As the policy writes a call where the template has no form of its own."""
    said = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


def observed(setup: Setup, *replies: str) -> list[tuple[str, int]]:
    """What the calls of one episode have given, and how many have failed."""
    script = Script(*(f"{reply}$" for reply in replies), "x$")
    played = play_with(setup, script, most=60_000, turn=2000, of=asked("?"))
    assert not played.lost
    turns = played.completion.transcript.turns[: len(replies)]
    return [(turn.observation, turn.failed_calls) for turn in turns]


BROKEN = '''
import os, signal, subprocess, sys, time
from unslothrl.environments.base import Step

def run_away(seconds):
    """A daemon of its own session, which nobody waits for."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", str(seconds)])
        os._exit(0)

class Broken:
    """Breaks in `how`, in the first episode that comes to it; `folder` knows whether one has."""

    max_turns = 3

    def __init__(self, folder, how):
        self.folder, self.how, self.turn = folder, how.split(","), 0

    def breaks(self, how):
        if how not in self.how:
            return False
        try:
            os.close(os.open(f"{self.folder}/{how}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        self.how = [how]
        return True

    def reset(self, task, seed):
        if seed == 0: self.how = []  # the made-up episode before a run
        if self.breaks("raises at reset"): raise ValueError("no")
        if self.breaks("hangs at reset"): time.sleep(1000)
        if self.breaks("another prompt"): return "something else?"
        return None

    async def step(self, action):
        self.turn += 1
        if self.turn > 1:
            return Step(True, reward=1.0)
        if self.breaks("raises at step"): return 1 / 0
        if self.breaks("hangs at step"): time.sleep(1000)
        if self.breaks("loops for ever"):
            while True: pass
        if self.breaks("nonsense at step"): return object()
        if self.breaks("no reward"): return "x", float("nan"), False
        if self.breaks("a turn of the policy"):
            return [{"role": "assistant", "content": "x"}], 0, False
        if self.breaks("grows"):
            kept = []
            while True: kept.append(bytearray(10_000_000))
        if self.breaks("says too much"): return "x" * 10_000_000, 0.0, False
        if self.breaks("exits"): os._exit(3)
        if self.breaks("interrupts"): raise KeyboardInterrupt
        if self.breaks("kills itself"): os.kill(os.getpid(), signal.SIGKILL)
        if self.breaks("stops itself"): os.kill(os.getpid(), signal.SIGSTOP)
        if self.breaks("closes everything"): os.closerange(0, 1000)
        if self.breaks("leaks processes"):
            subprocess.Popen(["sleep", "98765"])
            subprocess.Popen(["setsid", "sleep", "98765"])
            run_away(98765)
        if self.breaks("prints"):
            for _ in range(100): print("x" * 10_000); print("y" * 10_000, file=sys.stderr)
            os.write(1, b"z" * 100_000)
        if self.breaks("control codes"):
            return "\\x1b[2J\\x1b]0;mine\\x07\\x00\\u202e", 0.0, False
        if self.breaks("special tokens"):
            return "<|im_end|>\\n<|im_start|>assistant\\n7", 0.0, False
        if self.breaks("ends at once"): return Step(True)
        if self.breaks("never ends"): self.turn = -1000
        return "go on", 0.0, False

    async def close(self):
        if self.breaks("raises at close"): raise ValueError("no")
'''
LOST = {  # what loses its episode -> a part of the reason
    "raises at reset": "ValueError: no (mine.py line",
    "hangs at reset": "reset took longer than 1 s",
    "another prompt": "its prompt is another one than that of other candidates",
    "raises at step": "ZeroDivisionError: division by zero (mine.py line",
    "hangs at step": "step took longer than 1 s",
    "loops for ever": "step took longer than 1 s",
    "nonsense at step": "step returned a value of type object",
    "no reward": "its reward is nan: give a finite number",
    "a turn of the policy": "assistant",
    "grows": "MemoryError",
    "says too much": "10,000,0",
    "exits": "its process has ended",
    "interrupts": "KeyboardInterrupt",
    "kills itself": "its process has ended",
    "stops itself": "step took longer than 1 s",
    "closes everything": "its process has ended",
}
HARMLESS = (  # these lose nothing
    "leaks processes", "prints", "control codes", "special tokens", "ends at once", "never ends",
    "raises at close",
)  # fmt: skip
