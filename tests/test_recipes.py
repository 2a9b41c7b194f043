"""The recipes of the package: short, with a header that says what they are, and planned for."""

import json
import re
from pathlib import Path

import pytest
from runs_compared import rows as read

from unslothrl.commands import cli, plan
from unslothrl.config.offline_options import TABLES
from unslothrl.config.toml_files import RECIPES, command_of, read_recipe
from unslothrl.config.values import RUN
from unslothrl.embedded import BASES, EMBEDDED
from unslothrl.offline import examples
from unslothrl.system.machine import Machine


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_and_says_what_it_is_for(name):
    assert len(RECIPES[name].read_text().splitlines()) <= 40
    said = plan.recipe_report(name, Machine.detect())["header"]
    for field in ("Hardware", "Task", "Memory", "Time"):
        assert any(line.startswith(field) for line in said), field


def test_the_command_lists_those_that_fit_a_line_each_the_best_first(capsys):
    assert cli.main(["recipes"]) == 0
    fitting, others = capsys.readouterr().out.split("need a GPU: ")
    assert "tiny-cpu" in fitting and "gsm8k-12" in others
    assert cli.main(["recipes", "--gpu", "12"]) == 0
    listed, others = capsys.readouterr().out.split("too large: ")
    names = [line.split()[0] for line in listed.splitlines()[1:-1]]
    sizes = [int(card_of(name) or 16) for name in names]
    assert sizes[0] == 12 and sizes == sorted(sizes, key=lambda gb: (gb > 12, -gb))
    assert "tiny-cpu" not in names and "two-cards-24" in others
    assert cli.main(["recipes", "--card", "x"]) == 2
    assert "gpu x is not known" in capsys.readouterr().err


def card_of(name: str) -> str | None:
    """The card of a recipe for one card, by its name: the GB of gsm8k-8."""
    card = name.rpartition("-")[2]
    return card if card.isdigit() and name != "two-cards-24" else None


@pytest.mark.parametrize("name", [name for name in RECIPES if card_of(name)])
def test_a_recipe_fits_its_card_as_its_header_says(name, capsys):
    command = f"unslothrl plan --recipe {name} --gpu {card_of(name)}"
    (line,) = [row for row in RECIPES[name].read_text().splitlines() if row.startswith("# Memory")]
    assert line.endswith(f"({command})")
    assert cli.main([*command.split()[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (on_card,) = found["cards"]
    assert on_card["fits"]
    changed = [note.split()[0] for note in found["changed_to_fit"]]
    has_actor = "\nnumber_of_actors = 1\n" in RECIPES[name].read_text()  # beside the learner
    engine = "kv_cache_mb" if has_actor else "learner_gpu_usage"
    assert changed == ([] if command_of(name) in TABLES else [engine])
    report = plan.recipe_report(name, plan.machine_with(card_of(name)))
    usable = f"{on_card['usable_mb'] / 1024:.1f} GB"
    assert f"estimated: needs {report['needs'].removesuffix(' GB')} of {usable}" in line
    assert f"# Time       estimated: {report['time']}\n" in RECIPES[name].read_text()


SUM = "What is 347 + 285?"
QUESTION = {"role": "user", "content": SUM}
RIGHT, WRONG = ([QUESTION, {"role": "assistant", "content": text}] for text in ("632", "No."))
PAIR = {"chosen": RIGHT, "rejected": WRONG, "score_chosen": 8.0, "score_rejected": 3.0}
HUMAN = f"\n\nHuman: Hello\n\nAssistant: Hi.\n\nHuman: {SUM}\n\nAssistant: "
ROWS = {  # a row in the columns of each data set that a recipe names
    "openai/gsm8k": {"question": SUM, "answer": "347 + 285 = <<347+285=632>>632\n#### 632"},
    "HuggingFaceH4/MATH-500": {"problem": SUM, "answer": "632", "solution": "$\\boxed{632}$"},
    "DigitalLearningGmbH/MATH-lighteval": {
        "problem": SUM, "level": "Level 1", "type": "Prealgebra", "solution": "$\\boxed{632}$",
    },
    "HuggingFaceH4/aime_2024": {"id": 1, "problem": SUM, "solution": "So 632.", "answer": "632"},
    "open-r1/DAPO-Math-17k-Processed": {
        "prompt": SUM, "solution": "632", "ability": "MATH",
        "reward_model": {"ground_truth": "632", "style": "rule-lighteval/MATH_v2"},
    },
    "Jiayi-Pan/Countdown-Tasks-3to4": {"nums": [3, 4, 5], "target": 12},
    "trl-lib/Capybara": {"source": "Dove", "num_turns": 2, "messages": [*RIGHT, *RIGHT]},
    "HuggingFaceH4/ultrachat_200k": {"prompt": SUM, "prompt_id": "0", "messages": RIGHT},
    "trl-lib/ultrafeedback_binarized": PAIR,
    "HuggingFaceH4/ultrafeedback_binarized": {
        "prompt": SUM, "prompt_id": "0", "messages": RIGHT, **PAIR,
    },
    "Anthropic/hh-rlhf": {"chosen": f"{HUMAN}632", "rejected": f"{HUMAN}No."},
    "BAAI/TACO": {
        "question": "Print 347 times the sum of two numbers.", "difficulty": "EASY",
        "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
    },
}  # fmt: skip
SIZES = {
    "batch_size": 4,
    "num_candidates": 4,
    "topk": 4,
    "max_new_tokens": 64,
    "max_num_seqs": 16,
    "train_batch_size": 2,
    "max_length": 128,
    "max_lora_rank": 8,
    "learner_chunk_size": 2,
    "kv_cache_mb": 64,
    "eval_problems": 4,
    "eval_candidates": 2,
}


def file_of(source: str, folder: Path) -> str:
    """A file with rows like those of a source, or the source where it is an embedded one."""
    if source in BASES:
        return source
    name = re.split(r"[:@\[]", source)[0]
    path = folder / f"{name.replace('/', '-')}.jsonl"
    rows = [{**ROWS[name], "number": number} for number in range(20)]
    for number, row in enumerate(rows):  # no two alike, or none could be held out
        for column in ("question", "problem", "prompt", "messages", "chosen", "rejected"):
            if column in row:
                row[column] = json.loads(json.dumps(row[column]).replace("347", f"{300 + number}"))
        if "nums" in row:
            row["nums"] = [3, 4, 5 + number]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def replaced(recipe: dict, is_stage: bool, folder: Path) -> dict[str, object]:
    """The options that a test's run has instead of the recipe's own: the model, the data, the
    steps and the sizes, and one process for what has no actors."""
    dataset = file_of(recipe["dataset"], folder)
    model = recipe["model"] if recipe["model"] in BASES else EMBEDDED
    changes: dict[str, object] = {"model": model, "max_steps": 2, "dataset": dataset}
    if "eval_dataset" in recipe:
        parts = [text.rpartition("=") for text in recipe["eval_dataset"]]
        changes["eval_dataset"] = [f"{of}{sign}{file_of(text, folder)}" for of, sign, text in parts]
    if not is_stage:
        changes |= {"engine": "transformers", "max_prompt_tokens": 1200}  # a token is a byte here
        changes["system_prompt"] = ""  # which the embedded base has never seen
        if not recipe.get("max_staleness"):
            changes["cluster"] = "local"
    return changes | {k: min(v, recipe[k]) for k, v in SIZES.items() if k in recipe}


@pytest.mark.real
@pytest.mark.slow  # `make recipe-test`
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_for_two_steps(name, tmp_path, here):
    command = command_of(name)
    table = TABLES.get(command, RUN)
    recipe = read_recipe(name, table)
    changes = replaced(recipe, command in TABLES, tmp_path)
    for option, value in changes.items():
        print(f"{name}: {option} = {recipe.get(option, '(not set)')} replaced by {value}")
    flags = [
        f"--{option}={each}"
        for option, value in changes.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    assert cli.main([command, "--recipe", name, "--run_name", "two", *flags]) == 0
    rows = read(Path("runs/two/metrics.jsonl"))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert not any(row.get("reward/failed") for row in rows)
    if not {"boxed", "code"} & set(recipe.get("reward", ())):  # which the base never earns
        assert any("train/loss" in row for row in rows)
    resolved = read_recipe("runs/two/config.toml", table)
    for option in recipe.keys() - changes.keys():
        assert resolved[option] == recipe[option], option


@pytest.mark.parametrize("name", [name for name in RECIPES if command_of(name) in TABLES])
def test_rows_of_a_recipes_data_are_read(name, tmp_path):
    """Every one: in the columns of the data set that the recipe names."""
    command = command_of(name)
    source = read_recipe(name, table=TABLES[command])["dataset"]
    if source == EMBEDDED:
        return
    read_row = examples.example if command == "sft" else examples.pair
    for row in read(Path(file_of(source, tmp_path))):
        found = read_row(row)
        turns = [*getattr(found, "messages", ()), *getattr(found, "prompt", ())]
        assert any(SUM[-6:] in turn["content"] for turn in turns)
        if command != "sft":
            assert [turn["content"] for turn in (*found.chosen, *found.rejected)] == ["632", "No."]


def test_a_recipe_is_not_used_by_another_command(capsys, tmp_path):
    mine = tmp_path / "mine.toml"
    for command, name in (("train", "sft-cpu"), ("dpo", "rm-12")):
        assert cli.main([command, "--recipe", name]) == 2
        assert f"is for unslothrl {command_of(name)}, not for {command}" in capsys.readouterr().err
    for value in ("eval", 3, ["sft"]):
        mine.write_text(f"command = {json.dumps(value)}\n")
        assert cli.main(["--recipe", str(mine)]) == 2
        assert "command must be one of" in capsys.readouterr().err
