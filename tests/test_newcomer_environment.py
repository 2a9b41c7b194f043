"""A newcomer's change: an environment in one new file, a calculator that answers in a second
turn."""

import asyncio
import re
import sys

import pytest
from fakes import task
from test_actor import Words

from unslothrl import environments
from unslothrl.actors.actor import Actor
from unslothrl.engines.base import Finished
from unslothrl.errors import RunError, UserError
from unslothrl.types import Completion, Sampling

CALCULATOR = '''
"""A calculator: the policy asks for a sum, reads the result, and answers."""

import re

from unslothrl.environments.base import Step


class Calculator:
    max_turns = 2

    def reset(self, task, seed):
        self.asked = False

    async def step(self, action):
        asked = re.findall(r"(\\d+) ?([+-]) ?(\\d+)", action)
        if self.asked or not asked:
            return Step(done=True)
        self.asked = True
        left, sign, right = asked[-1]
        result = int(left) + int(right) * (1 if sign == "+" else -1)
        return Step(done=False, observation=f"= {result}", reward=0.5)


ENVIRONMENT = Calculator
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "calculator.py"
    path.write_text(CALCULATOR)
    return path


class Asks:
    """Draws "2 + 3" as a first turn and "5" as a second; letters are tokens."""

    versions_loaded = versions_unloaded = 0

    def __init__(self):
        self.requests, self.waiting, self.sampled_tokens = [], [], 0

    def add(self, request):
        self.requests.append(request)
        self.waiting.append(request)

    def is_finished(self):
        return not self.waiting

    def step(self):
        request = self.waiting.pop(0)
        text = "5" if ord("=") in request.prompt_ids else "2 + 3"
        ids = (*map(ord, text), Letters.END)
        return [Finished(request.id, Completion.drawn(ids, (-0.1,) * len(ids), "stop", 4))]

    def sleep(self):
        pass

    def memory_mb(self):
        return 1.0

    def close(self):
        pass


class Letters(Words):
    END = 1

    def decode(self, ids, **_):
        return "".join(chr(i) for i in ids if i != self.END)

    def __call__(self, texts, **_):
        return {"input_ids": [[*map(ord, text.replace("$", chr(self.END)))] for text in texts]}

    def apply_chat_template(self, turns, **_):
        return "".join(f"[{turn['content']}]$" for turn in turns)


def test_the_calculator_answers_in_a_second_turn(file):
    engine = Asks()
    actor = Actor("actor-0", engine, Letters(), environment=f"{file}:Calculator")
    (group,) = actor.generate([task("sum", (7, 8))], 2, Sampling(1.0, 1.0, 0, 60), (0,))
    actor.close()
    assert len(engine.requests) == 4
    for completion in group.completions:
        observed = [
            t for t, s in zip(completion.token_ids, completion.sampled, strict=True) if not s
        ]
        assert Letters().decode(observed) == "][= 5]"
        assert completion.text == "2 + 3][= 5]5" and set(completion.versions) == {4}
    assert group.rewards["environment"] == (0.5, 0.5)


def test_a_file_in_the_package_is_an_environment_by_its_name(file, monkeypatch):
    monkeypatch.setattr(environments, "__path__", [*environments.__path__, str(file.parent)])
    environments.names.cache_clear()
    try:
        assert {"calculator", "single_turn"} <= set(environments.names())
        environment = environments.load("calculator")()
        environment.reset(task("a"), 0)
        assert asyncio.run(environment.step("what is 20 - 3?")).observation == "= 17"
        assert asyncio.run(environment.step("20 - 3")).done
    finally:
        environments.names.cache_clear()
        sys.modules.pop("unslothrl.environments.calculator", None)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("calculater", "none of"),
        ("{folder}/none.py:Calculator", "no such file"),
        ("{folder}/calculator.py:Abacus", "no such class"),
        ("{folder}/broken.py:Calculator", "give a .py file"),
        ("{folder}/half.py:Half", "lacks step, max_turns"),
        ("{folder}/raises.py:Calculator", "fails when it is imported (ValueError: no)"),
    ],
)
def test_what_is_no_environment_is_refused_in_a_line(name, why, file):
    (file.parent / "broken.py").write_text("class Calculator(:\n")
    (file.parent / "half.py").write_text("class Half:\n    def reset(self, task, seed): ...\n")
    (file.parent / "raises.py").write_text("class Calculator: ...\nraise ValueError('no')\n")
    with pytest.raises(UserError) as error:
        environments.load(name.format(folder=file.parent))
    assert why in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("breaks", "why"),
    [("asyncio.current_task().cancel()", "cancelled the episode"), ("exit(3)", "sys.exit(3)")],
)
def test_an_environment_that_ends_its_episode_is_an_error(file, breaks, why):
    file.write_text(
        "import asyncio\nclass Breaks:\n    max_turns = 2\n    def reset(self, task, seed): ...\n"
        f"    async def step(self, action):\n        {breaks}\n        await asyncio.sleep(0)\n"
    )
    actor = Actor("actor-0", Asks(), Letters(), environment=f"{file}:Breaks")
    with pytest.raises(RunError, match=re.escape(why)):
        actor.generate([task("sum", (7, 8))], 2, Sampling(1.0, 1.0, 0, 60), (0,))
    actor.close()


@pytest.mark.parametrize("waits", ["", "await asyncio.sleep(0.01)"])
def test_an_environment_that_fails_ends_the_collection(file, waits):
    """Also where it fails while all others wait, and nothing is drawn."""
    file.write_text(
        "import asyncio\nclass Breaks:\n    max_turns = 2\n    def reset(self, task, seed): ...\n"
        f"    async def step(self, action):\n        {waits or 'pass'}\n"
        "        raise ValueError('broken')\n"
    )
    actor = Actor("actor-0", Asks(), Letters(), environment=f"{file}:Breaks")
    with pytest.raises(ValueError, match="broken"):
        actor.generate([task("sum", (7, 8))], 2, Sampling(1.0, 1.0, 0, 60), (0,))
    actor.close()


def test_other_episodes_go_on_while_one_waits(file):
    """The first waits for the second, which is drawn meanwhile."""
    file.write_text(
        "import asyncio\nclass Waits:\n    max_turns = 1\n    finished = 0\n"
        "    def reset(self, task, seed): self.task = task\n"
        "    async def step(self, action):\n"
        "        from unslothrl.environments.base import Step\n"
        "        while self.task.id == '0' and not Waits.finished:\n"
        "            await asyncio.sleep(0)\n"
        "        Waits.finished += 1\n"
        "        return Step(reward=float(Waits.finished))\n"
    )
    actor = Actor("actor-0", Asks(), Letters(), environment=f"{file}:Waits")
    groups = actor.generate(
        [task("0", (7, 8)), task("1", (7, 8))], 1, Sampling(1.0, 1.0, 0, 60), (0,)
    )
    actor.close()
    assert [group.task.id for group in groups] == ["0", "1"]
