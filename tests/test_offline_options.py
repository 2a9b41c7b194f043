"""The options of `unslothrl sft`, `dpo` and `rm`: flags, recipes, the run that is resumed."""

import json
import shutil
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from test_reward_model import head

from unslothrl import embedded
from unslothrl.config.offline_options import TABLES, DpoOptions, RmOptions, SftOptions
from unslothrl.config.toml_files import to_toml
from unslothrl.errors import UserError
from unslothrl.offline.resolve import resolve
from unslothrl.runs.resolve import FREE_OF_STAGES
from unslothrl.runs.resolve import resolve as resolve_run
from unslothrl.system.machine import Gpu, Machine
from unslothrl.tracking import origin
from unslothrl.weights import adapter_use

COMMANDS = ["sft", "dpo", "rm"]
MACHINE = Machine(cpus=2, ram_mb=16_000)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"problem": "1?", "answer": "1"}')
    return tmp_path


def run_of(command, **flags):
    """A run's folder as far as a resume reads it. -> its options"""
    options = resolve(command, {"run_name": "first", **flags}).options
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/config.toml").write_text(to_toml(options))
    return options


@pytest.mark.parametrize("command", COMMANDS)
def test_config_toml_reads_back_as_the_same_options(command):
    flags = {
        "dataset": "rows.jsonl", "model": "org/model", "lr": "3e-5", "max_steps": "7",
        "trl": ["adam_beta1=0.8", "neftune_noise_alpha=5"], "system_prompt": 'say "hi"\n\x7f',
        "track": ["tensorboard"], "warmup_steps": "3", "max_length": "512",
    }  # fmt: skip
    options = resolve(command, flags).options
    text = to_toml(options, ("a fact",))
    assert "# a fact" in text and tomllib.loads(text)["command"] == command
    Path("again.toml").write_text(text)
    place = {"recipe": "again.toml", "output_dir": "other"}
    assert resolve(command, place).options == replace(options, **place)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_resume_goes_on_with_the_same_options(command):
    options = run_of(command, lr="1e-3", batch_size="8")
    again = resolve(command, {"resume": "runs/first"}).options
    assert again == replace(options, resume="runs/first", output_dir="runs")


@pytest.mark.parametrize(
    "flags",
    [{"lr": "1e-3"}, {"packing": True}, {"system_prompt": "x"}, {"trl": ["adam_beta1=0.5"]}],
)
def test_a_resume_with_another_training_is_refused_by_name(flags):
    run_of("sft")
    (name,) = flags
    with pytest.raises(UserError, match=f"^{name} .*leave --{name} out"):
        resolve("sft", {"resume": "runs/first", **flags})


def test_what_a_resume_may_change():
    run_of("sft", max_steps="3")
    flags = {"max_steps": "9", "keep_checkpoints": "5", "train_batch_size": "2", "lr": "2e-4"}
    options = resolve("sft", {"resume": "runs/first", **flags}).options
    assert (options.max_steps, options.keep_checkpoints, options.train_batch_size) == (9, 5, 2)
    assert {"max_steps", "keep_checkpoints", "train_batch_size", "fit"} <= FREE_OF_STAGES


@pytest.mark.parametrize(("command", "other"), [("sft", "rm"), ("rm", "dpo"), ("sft", "train")])
def test_a_run_of_another_command_is_not_resumed(command, other):
    run_of("rm" if other == "train" else other)
    if other == "train":
        Path("runs/first/config.toml").write_text('learner = "grpo"\n')
    with pytest.raises(UserError, match=f"is for unslothrl {other}, not for {command}"):
        resolve(command, {"resume": "runs/first"})
    with pytest.raises(UserError, match="resume must be a run's folder, got nowhere"):
        resolve(command, {"resume": "nowhere"})


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        ("sft", {"lr": "abc"}, "set --lr 0.0002"),
        ("dpo", {"loss_type": "sigmod"}, "--loss_type sigmoid"),
        ("sft", {"eval_dataset": ["a=embedded", "b=embedded"]}, "give one source"),
        ("sft", {"model": "org/model"}, "dataset embedded: these problems are for its own model"),
        ("sft", {"model": "./nowhere", "dataset": "a/b"}, "nowhere.*no such file or folder"),
        ("sft", {"learner": "grpo"}, "--learner is not an option of sft"),
        ("rm", {"run_name": "a/b"}, "run_name.*--output_dir"),
    ],
)
def test_a_bad_option_is_refused_with_what_to_set(command, flags, said):
    with pytest.raises(UserError, match=said):
        resolve(command, flags)


def config_of(options, *given):
    from unslothrl.offline import training

    return training.config_of(replace(options, trl=given), Path("out"))


@pytest.mark.real
@pytest.mark.parametrize("options", [SftOptions(), DpoOptions(), RmOptions()])
def test_fields_of_trl_are_set(options):
    config = config_of(options, "adam_beta1=0.8", "average_tokens_across_devices=false")
    assert (config.adam_beta1, config.average_tokens_across_devices) == (0.8, False)
    assert config.learning_rate == options.lr


@pytest.mark.real
@pytest.mark.parametrize(
    "given",
    ["adam_bata1=1", "learning_rate=1", "lr_scheduler_kwargs={}", "packing=true", "adam_beta1"],
)
def test_a_field_of_trls_that_cannot_be(given):
    with pytest.raises(UserError, match=given.partition("=")[0]):
        config_of(SftOptions(), given)


@pytest.mark.real
def test_a_loss_on_pairs_is_told_only_what_it_reads():
    robust, sigmoid = (replace(DpoOptions(), loss_type=name) for name in ("robust", "sigmoid"))
    assert config_of(robust, "label_smoothing=0.1")
    assert config_of(sigmoid, "f_divergence_type=js_divergence")
    for options, given in ((robust, ()), (sigmoid, ("label_smoothing=0.1",))):
        with pytest.raises(UserError, match="label_smoothing"):
            config_of(options, *given)


@pytest.mark.real
def test_what_may_be_set_are_fields_of_trls():
    from unslothrl.offline import training

    for kind, config in training.CONFIGS.items():
        assert {each.name for each in fields(config) if each.init} >= training.ALLOWED[kind]


@pytest.fixture
def adapter(here):
    """The folder of one whose shape is not the default."""
    folder = here / "start"
    shutil.copytree(embedded.TURNS, folder)
    config = folder / "adapter_config.json"
    settings = json.loads(config.read_text()) | {"lora_alpha": 24, "lora_dropout": 0.05}
    config.write_text(json.dumps(settings))
    return folder, settings["r"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_adapter_keeps_its_shape(command, adapter):
    folder, rank = adapter
    assert rank != TABLES[command].config().max_lora_rank
    stage = resolve(command, {"adapter": str(folder)})
    found = stage.options
    assert (found.max_lora_rank, found.lora_alpha, found.lora_dropout) == (rank, 24, 0.05)
    assert len([note for note in stage.notes if "as adapter" in note]) == 3
    other = resolve(command, {"adapter": str(folder), "lora_alpha": "16", "lora_dropout": "0.2"})
    assert other.options.lora_alpha == 24 and "lora_alpha 16 -> 24" in str(other.notes)
    assert other.options.lora_dropout == (0.2 if command == "rm" else 0.05)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_model_it_is_the_adapters_or_that_of_the_machine(command, adapter):
    """As in RL: what a card holds, and the embedded base where there is none."""
    own = {"dataset": "rows.jsonl"}
    default = TABLES[command].config().model
    for gb, online, model, why in (
        (0, None, "embedded", "there is no GPU"),
        (24, True, default, None),
        (8, True, "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", "fits 8 GB"),
        (8, False, "embedded", "the Hugging Face hub does not answer"),
    ):
        gpus = (Gpu("a card", gb * 1024, gb * 1024, (8, 6)),) if gb else ()
        stage = resolve(command, own, machine=Machine(gpus=gpus, online=online))
        assert stage.options.model == model and "model" not in stage.given
        notes = [f"model {default} -> {model}: {why}"] if why else []
        assert [note for note in stage.notes if note.startswith("model ")] == notes
    folder, _ = adapter
    for base in ("embedded", "me/base"):
        (folder / adapter_use.USE_FILE).write_text(adapter_use.to_json(adapter_use.Use(base, "")))
        stage = resolve(command, {**own, "adapter": str(folder)}, machine=Machine())
        assert stage.options.model == base and "model" not in stage.recipe
        run = resolve_run({**own, "adapter": str(folder)}, MACHINE)
        assert run.config.model == base and "model" not in run.recipe
        note = f"model -> {base}: the base of adapter {folder}"
        assert (note in stage.notes) == (note in run.notes) == (base != "embedded")
        given = {**own, "adapter": str(folder), "model": "you/other"}
        assert resolve(command, given).options.model == "you/other"


@pytest.mark.parametrize("command", ["train", *COMMANDS])
def test_auto_finds_a_run_whose_adapter_and_rewards_are_named_by_runs(command, here):
    """They need not be there any more, nor be the newest of their runs; relative paths are the same
    from any folder."""
    (here / "mine.py").write_text("def f(completions, **_): return [0.0] * len(completions)")
    for name, kind in (("taught", "policy"), ("judge", "reward_model")):
        adapter_of_run(here / "runs" / name / "adapters" / "v000002", kind)
    given = {"dataset": "rows.jsonl", "model": "embedded", "adapter": "runs/taught"}
    if command == "train":
        given["reward"] = ("rm:runs/judge=0.5", "mine.py:f")
    first = resolved(command, given)
    assert first["adapter"] == str(here / "runs/taught/adapters/v000002")
    folder = begun(first, here / "runs/taught/adapters/v000002")
    adapter_of_run(here / "runs/taught/adapters/v000004", "policy")
    adapter_of_run(here / "runs/judge/adapters/v000004", "reward_model")
    again = resolved(command, {**given, "resume": "auto"})
    assert Path(again["resume"]).absolute() == folder and again["adapter"] == first["adapter"]
    assert again["reward"] == first["reward"]
    if command == "train":  # unless its adapter is named; an option that changes does not matter
        other = {**given, "reward": ("rm:runs/judge=2",), "resume": str(folder)}
        changed = resolved(command, other)
        assert changed["reward"] == (f"rm:{here}/runs/judge/adapters/v000002=2",)
        shutil.move(here / "runs/judge/adapters/v000002", here / "gone")
        changed = resolved(command, {**given, "resume": str(folder)})
        assert changed["reward"][0] == f"rm:{here}/runs/judge/adapters/v000004=0.5"
        shutil.move(here / "gone", here / "runs/judge/adapters/v000002")
    shutil.rmtree(here / "runs/taught")
    again = resolved(command, {**given, "resume": "auto"})
    assert Path(again["resume"]).absolute() == folder
    with pytest.raises(UserError, match=r"no such folder|the run that is resumed has"):
        resolved(command, {**given, "adapter": "runs/other", "resume": str(folder)})


def begun(first, adapter):
    """-> the folder of a run with the options and a copy of the adapter"""
    folder = Path("runs", first["run_name"]).absolute()
    shutil.copytree(adapter, folder / "start")
    (folder / "config.toml").write_text(first["toml"])
    origin.record(folder, recipe=first["recipe"])
    return folder


def adapter_of_run(folder, kind):
    shutil.copytree(embedded.TURNS, folder)
    use = adapter_use.Use("embedded", "", kind=kind)
    (folder / adapter_use.USE_FILE).write_text(adapter_use.to_json(use))
    if kind == "reward_model":
        head(folder)


def resolved(command, given):
    is_run = command == "train"
    found = resolve_run(given, MACHINE) if is_run else resolve(command, given)
    options = found.config if is_run else found.options
    names = ("adapter", "resume", "run_name", "reward", "max_lora_rank", "lora_alpha")
    said = {name: getattr(options, name, None) for name in names}
    return {"recipe": found.recipe, "toml": to_toml(replace(options, resume=None)), **said}


CHANGED = [("rm", {"recipe": "mine.toml"}), ("train", {"max_lora_rank": "64"}),
           ("sft", {"backend": "auto"})]  # fmt: skip


@pytest.mark.parametrize(("command", "given"), CHANGED)
def test_a_run_goes_on_with_what_it_has_made_of_its_options(command, given, adapter, here):
    """The same command again, though the adapter's shape, or the machine, has decided otherwise."""
    folder, rank = adapter
    Path("mine.toml").write_text(f"max_lora_rank = {RmOptions().max_lora_rank}\n")
    given = {**given, "adapter": str(folder), "dataset": "rows.jsonl", "model": "embedded"}
    first = resolved(command, given)
    first["toml"] = first["toml"].replace('backend = "auto"', 'backend = "peft"')
    run = begun(first, folder)
    for resume in ("auto", str(run)):
        again = resolved(command, {**given, "resume": resume})
        assert Path(again["resume"]).absolute() == run
        assert (again["max_lora_rank"], again["lora_alpha"]) == (rank, 24)
    with pytest.raises(UserError, match="the run that is resumed has"):
        resolved(command, {**given, "max_lora_rank": "48", "resume": str(run)})


@pytest.mark.parametrize("base", ["", "/old/machine/base", "a\x1b[31m/b"])
def test_a_base_that_an_adapter_cannot_have(base, adapter):
    folder, _ = adapter
    (folder / "unslothrl.json").write_text(adapter_use.to_json(adapter_use.Use(base, "")))
    for command in ("train", "sft"):
        with pytest.raises(UserError, match="set --model") as caught:
            resolved(command, {"adapter": str(folder), "dataset": "rows.jsonl"})
        assert str(caught.value).isprintable()


def test_the_base_of_an_adapter_is_that_of_its_settings_and_another_model_is_noted(adapter):
    folder, _ = adapter
    given = {"adapter": str(folder), "dataset": "rows.jsonl"}
    (folder / "unslothrl.json").unlink(missing_ok=True)
    config = folder / "adapter_config.json"
    settings = json.loads(config.read_text()) | {"base_model_name_or_path": "me/base"}
    config.write_text(json.dumps(settings))
    assert resolve("sft", given).options.model == "me/base"
    notes = resolve("sft", {**given, "model": "me/other"}).notes
    assert f"adapter {folder} was trained on 'me/base', and the model is me/other" in notes
    for model in ("me/base", "unsloth/Base-unsloth-bnb-4bit"):
        notes = resolve("sft", {**given, "model": model}).notes
        assert not any("was trained on" in note for note in notes)


def test_dropout_that_trl_turns_off_is_noted():
    def is_noted(command, *trl):
        notes = resolve(command, {"lora_dropout": "0.2", "trl": trl}).notes
        return any("lora_dropout 0.2 has no effect" in note for note in notes)

    assert is_noted("dpo") and is_noted("rm")
    assert not is_noted("sft") and not is_noted("rm", "disable_dropout=false")
