"""The examples in the documents run as they are, and what the documents name exists."""

import contextlib
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from fakes import completed

from unslothrl import rewards
from unslothrl.algorithms import objectives
from unslothrl.algorithms.losses import Denominators, Tokens, policy_loss
from unslothrl.commands.signatures import ALL_COMMANDS
from unslothrl.data import formats, sources
from unslothrl.records import FROM_THE_ENVIRONMENT
from unslothrl.rewards import assertions, builtin
from unslothrl.rewards.builtin import code, countdown
from unslothrl.rewards.scorer import Scorer

ROOT = Path(__file__).parents[1]


def python_of(page: str, number: int = 0) -> str:
    return (ROOT / "docs" / page).read_text().split("```python\n")[number + 1].split("```")[0]


def documented_example(number: int = 0) -> str:
    """A Python file of docs/algorithms.md: SAPO, mean deviation, GMPO, a mask by entropy."""
    return python_of("algorithms.md", number)


def test_the_example_has_the_gradient_of_its_formula(tmp_path):
    # d/drho of 4/tau sigmoid(tau (rho - 1)) is 4 s (1 - s), at rho = 1 exactly 1: with advantages
    # 2 and -1, each one token of two sequences, the gradient is -2/2 and 1/2
    (tmp_path / "sapo.py").write_text(documented_example())
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = Tokens([1, 1], logprobs, torch.zeros(2), torch.tensor([2.0, -1.0]), logprobs.detach())
    objective = objectives.load(str(tmp_path / "sapo.py"))
    policy_loss(objective, tokens, Denominators(2, 2, 8)).value.backward()
    assert torch.allclose(logprobs.grad, torch.tensor([-1.0, 0.5]))


@pytest.mark.real
def test_the_documented_rewards_run(tmp_path):
    text = python_of("rewards.md", 2).replace("    ...", "    return level")
    (tmp_path / "mine.py").write_text(text)
    made = [
        completed("<answer>7</answer>", 2, "7", {"level": 3}, "P"),
        completed("not 7: <answer>8</answer>", 1, "7", {"level": 4}, "P"),
    ]
    expected = {"reward": [1.0, 0.0], "judge": [3.0, 4.0], "batch": [0.018, 0.025]}
    chosen = rewards.choose(tuple(f"{tmp_path}/mine.py:{name}" for name in expected))
    with contextlib.closing(Scorer(chosen)) as scorer:
        scored = scorer.score(made)
    assert (scored.rewards, scored.failures) == (expected, [])


def test_the_tutorials_rewards_earn_what_it_says():
    page = (ROOT / "docs" / "rewards.md").read_text()
    made = [json.loads(line) for line in re.findall(r"^ {4}(\{.*\})$", page, re.MULTILINE)[:3]]
    for number, name, other, expected in (
        (0, "grounded", made[0]["problem"], [0.5, 1, 0]),
        (1, "fields", made[0]["completion"], [1, 0.5, 0]),
    ):
        defined: dict = {}
        exec(python_of("rewards.md", number), defined)
        assert [defined[name](row["completion"], other) for row in made] == expected


def test_every_reward_is_documented():
    text = (ROOT / "docs" / "rewards.md").read_text()
    for name in builtin.names():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` | ")]
        assert f"| {builtin.load(name).weight:g} |" in row


TEXTS = [*(ROOT / f"{name}.md" for name in ("README", "AGENTS", "CONTRIBUTING"))]
TEXTS += sorted((ROOT / "docs").glob("*.md"))
TEXTS += sorted(ROOT.glob("recipes/*"))
OTHER_PROGRAMS = re.compile(
    r"`(?:python (?:bench|tools)/|bash |pip |ray |make |tensorboard |trackio |wandb |#SBATCH "
    r"|vllm |llama-server |ollama |docker )"
    r"[^`]*`"
    r"|^.*(?:bench/|tools/|lm_eval |pip |podman |ray (?:start|status|get-auth-token) |ufw |srun "
    r"|#SBATCH |\(hostname ).*$",
    re.MULTILINE,
)
OTHERS = {"no-deps", "no-build-isolation", "also", "only", "plain"}  # of pip, measure.py, make_base
OTHERS |= {"help", "help_all", "objective", "version"}
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_-]+(?:\.[a-z_]+)?)")
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
ADDRESS = re.compile(r"https?://[\w.-]+/[\w.-]+/unslothrl\b")
METRIC = re.compile(r"`((?:reward|train|rollout|sync|timing|memory|eval)/[\w@<>./]+)`")


def test_every_flag_that_is_named_exists():
    known = OTHERS | {
        name.lstrip("-")
        for each in ALL_COMMANDS.values()
        for parameter in each.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for path in TEXTS:
        named = set(FLAG.findall(OTHER_PROGRAMS.sub("", path.read_text()))) - known
        assert {flag.replace("-", "_") for flag in named} <= {k.replace("-", "_") for k in known}


def anchors(path: Path) -> set[str]:
    """Those that GitHub gives the headings of a file."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_every_link_within_the_repository_leads_somewhere():
    pages = [path for path in TEXTS if path.suffix == ".md"]
    for path, link in [(page, link) for page in pages for link in LINK.findall(page.read_text())]:
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists() and target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_pages_are_few_lines_short_and_all_found_from_the_index():
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) <= 21 and len((ROOT / "README.md").read_text().splitlines()) <= 125
    lines = [(path.name, *each) for path in TEXTS for each in enumerate(path.open(), 1)]
    assert [(name, n, len(line)) for name, n, line in lines if len(line) > 201] == []
    index = (ROOT / "docs" / "index.md").read_text()
    linked = {link.partition("#")[0] for link in LINK.findall(index)}
    assert {path.name for path in pages} - {"index.md"} <= linked


def test_the_repositorys_address_is_one_setting():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    address = settings["tool"]["unslothrl"]["repository"]
    shown = [*TEXTS, *ROOT.glob("notebooks/*"), *ROOT.glob(".github/*/*"), ROOT / "CITATION.cff"]
    found = {(path.name, each) for path in shown for each in ADDRESS.findall(path.read_text())}
    assert {each for _, each in found} == {address} and len(found) >= 2  # the notebooks


def test_the_pictures_are_of_the_committed_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import picture

    for name in picture.PICTURES:
        assert (picture.IMAGES / f"{name}.svg").read_text() == picture.drawn(name)


def test_every_metric_that_is_named_is_written():
    """A name with <...> in it stands for several, so its fixed beginning must be written."""
    sources = "".join(path.read_text() for path in (ROOT / "unslothrl").rglob("*.py"))
    named = {name for path in TEXTS for name in METRIC.findall(path.read_text())}
    assert "reward/failed" in named
    named.discard(f"reward/{FROM_THE_ENVIRONMENT}")  # written as any reward, by its name
    assert [name for name in named if f'"{name.partition("<")[0]}' not in sources] == []


def table(path: str, heading: str) -> list[list[str]]:
    text = (ROOT / path).read_text().partition(f"\n## {heading}\n")[2]
    rows = re.findall(r"^\|.*", text.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_every_column_that_is_documented_is_read():
    known = {*formats.PROMPTS, *formats.ANSWERS, *formats.WORKED, *code.COLUMNS, *code.IN_PYTHON}
    known |= {*countdown.NUMBERS, *assertions.SETUPS, assertions.ENTRY, formats.INPUT}
    known |= {formats.SYSTEM, "target", "text"}
    rows = table("docs/data.md", "Formats")
    assert len(rows) >= 10
    read = {name for columns, *_ in rows for name in re.findall(r"`([a-z_.]+)`", columns)}
    assert read - known == set()
    assert {*formats.PROMPTS, *code.COLUMNS, *code.IN_PYTHON} <= read


def test_every_evaluation_set_with_a_name_is_documented():
    rows = table("docs/data.md", "Evaluation sets by name")
    documented = {tuple(cell.strip("`") for cell in row) for row in rows}
    on_hub = {(name, *each) for name, each in sources.NAMED.items() if name != "embedded-json"}
    assert documented == on_hub
