"""docs/options.md and docs/troubleshooting.md say what the code says."""

import ast
import dataclasses
import re
import shlex
from pathlib import Path

import option_documents
import pytest

from unslothrl.config import names
from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import OPTIONS
from unslothrl.config.values import RUN
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Machine

ROOT = Path(__file__).parents[1]
CPU = Machine(cpus=2, ram_mb=16_000, packages=frozenset({"vllm", "ray"}), online=False)
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_the_page_is_up_to_date():
    """`python tools/option_documents.py` writes it."""
    assert option_documents.PAGE.read_text() == option_documents.page()


def test_every_option_has_a_row():
    text, stages = option_documents.page().split(option_documents.OF_STAGES)
    for name in OPTIONS:
        spelled = RUN.spellings(name)[0]
        assert len(re.findall(rf"^\| (?:\*\*)?`--{spelled}`", text, re.MULTILINE)) == 1
    for name in {name for table in TABLES.values() for name in table.options}:
        assert len(re.findall(rf"^\| `--{name}`", stages, re.MULTILINE)) == 1


@pytest.mark.real
def test_every_option_of_grpo_in_trl_is_known_or_of_another_kind():
    """Against the TRL that is installed."""
    trl = pytest.importorskip("trl")
    fields = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    inherited = {field.name for field in dataclasses.fields(trl.GRPOConfig.__mro__[1])}
    known = {*OPTIONS, *names.ALIASES, *names.elsewhere()}
    of_grpo = fields - inherited
    assert len(of_grpo) > 40
    assert sorted(of_grpo - known) == sorted(NOT_ANSWERED)


NOT_ANSWERED = {"router_aux_loss_coef"}  # of mixtures of experts


# Troubleshooting


def messages() -> list[str]:
    """Every text in the package, with ... for what is put into it."""
    texts = []
    for path in sorted((ROOT / "unslothrl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                pieces = [
                    part.value if isinstance(part, ast.Constant) else "..." for part in node.values
                ]
                texts.append(" ".join("".join(map(str, pieces)).split()))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(" ".join(node.value.split()))
    return texts


def quoted() -> list[str]:
    """What the first column quotes of messages: those that are sentences, not metrics or labels."""
    rows = [line for line in TROUBLES.splitlines() if line.startswith("| ")]
    columns = [row.split("|")[1] for row in rows]
    found = [text for column in columns for text in re.findall(r"`([^`]+)`", column)]
    return [text for text in found if " " in text]


@pytest.mark.real
def test_every_message_that_is_quoted_is_one_of_ours():
    texts, named = "\n".join(messages()), quoted()
    assert len(named) > 20
    for message in named:
        parts = [re.escape(" ".join(part.split())) for part in message.split("...")]
        assert re.search(".*".join(parts).removesuffix(".*"), texts), message


FLAGS = re.compile(r"`(--[^`]+)`")


def advised() -> list[str]:
    """The flags that the page tells to set, with their values."""
    found = FLAGS.findall(TROUBLES)
    return sorted({text for text in found if len(shlex.split(text)) > 1})


@pytest.mark.parametrize("flags", advised())
def test_what_the_page_says_to_set_can_be_set(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def function(completion, answer):\n    return 1.0\n")
    given: dict[str, object] = {}
    words = shlex.split(flags)
    while words:
        flag = words.pop(0)
        value = words.pop(0) if words and not words[0].startswith("--") else True
        name = flag.removeprefix("--").removeprefix("objective.")
        if name == "reward":
            given.setdefault(name, []).append(value)  # type: ignore[attr-defined]
        else:
            given[name] = value
    assert given.keys() <= OPTIONS.keys()
    config = resolve(given, CPU).config
    assert all(getattr(config, name) is not None for name in given)
