"""docs/options.md and docs/faq.md say what the code says."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import option_documents
import pytest
from stopped_run import MACHINE as CPU

from unslothrl.config import values
from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import OPTIONS
from unslothrl.config.values import RUN
from unslothrl.runs.resolve import resolve

ROOT = Path(__file__).parents[1]
TROUBLES = (ROOT / "docs" / "faq.md").read_text()


def test_the_page_is_up_to_date_and_every_option_has_a_row():
    """`python tools/option_documents.py` writes it."""
    page = option_documents.page()
    assert option_documents.PAGE.read_text() == page
    text, stages = page.split(option_documents.OF_STAGES)
    for name in OPTIONS:
        spelled = RUN.spellings(name)[0]
        assert len(re.findall(rf"^\| (?:\*\*)?`--{spelled}`", text, re.MULTILINE)) == 1
    for name in {name for table in TABLES.values() for name in table.options}:
        assert len(re.findall(rf"^\| `--{name}`", stages, re.MULTILINE)) == 1


@pytest.mark.real
def test_every_option_of_grpo_in_trl_is_known_or_of_another_kind():
    trl = pytest.importorskip("trl")
    fields, inherited = (each.__dataclass_fields__.keys() for each in trl.GRPOConfig.__mro__[:2])
    of_grpo = fields - inherited
    assert len(of_grpo) > 40
    unknown = of_grpo - {*OPTIONS, *values.ALIASES, *values.elsewhere()}
    assert unknown == {"router_aux_loss_coef"}  # of mixtures of experts


def messages() -> Iterator[str]:
    """Every text in the package, with ... for what is put into it."""
    for path in (ROOT / "unslothrl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                parts = [str(getattr(p, "value", "...")) if isinstance(p, ast.Constant) else "..."
                         for p in getattr(node, "values", [node])]  # fmt: skip
                yield " ".join("".join(parts).split())


@pytest.mark.real
def test_every_message_that_is_quoted_is_one_of_ours():
    """The first column quotes messages, which are sentences, and metrics or labels."""
    columns = [line.split("|")[1] for line in TROUBLES.splitlines() if line.startswith("| ")]
    quoted = [text for text in re.findall(r"`([^`]+)`", "".join(columns)) if " " in text]
    texts = "\n".join(messages())
    assert len(quoted) > 20
    for message in quoted:
        parts = [re.escape(" ".join(part.split())) for part in message.split("...")]
        assert re.search(".*".join(parts).removesuffix(".*"), texts), message


@pytest.mark.parametrize("flags", sorted({*re.findall(r"`(--[^`]+ [^`]+)`", TROUBLES)}))
def test_what_the_page_says_to_set_can_be_set(flags, tmp_path, here):
    (tmp_path / "mine.py").write_text("def function(completion, answer):\n    return 1.0\n")
    given = {}
    words = shlex.split(flags)
    while words:
        name = words.pop(0).removeprefix("--").removeprefix("objective.")
        value = words.pop(0) if words and not words[0].startswith("--") else True
        given[name] = [*given.get(name, []), value] if name == "reward" else value
    assert given.keys() <= OPTIONS.keys()
    assert all(getattr(resolve(given, CPU).config, name) is not None for name in given)
