"""What SFT, DPO and a reward model take: against TRL's trainers, by hand, and what fits."""

import os
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
from environment_files import rows_in
from few_cases import few
from test_plan import MAIN, as_json, cards, config_of, said, saved_bytes

from unslothrl.commands import cli
from unslothrl.config.offline_options import TABLES, DpoOptions, RmOptions, SftOptions
from unslothrl.errors import UserError
from unslothrl.offline import resolve as resolving
from unslothrl.offline.resolve import resolve
from unslothrl.planning import forecast, stages
from unslothrl.planning.footprint import MB, usable_mb
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.planning.stages import Reference, needs
from unslothrl.system.machine import Machine
from unslothrl.weights import shapes
from unslothrl.weights.shapes import KNOWN

SEVEN = KNOWN["qwen2.5-7b"]
MODEL = "unsloth/Qwen2.5-7B-bnb-4bit"
GPU = cards(24).gpus[0]


def options_of(kind=SftOptions, **changed):
    return replace(kind(model=MODEL, dataset="a/b"), **changed)


WORDS = (40, 35, 40, 31)  # characters of the replies: some rows of a micro-batch are padded
CASES = [
    ("sft", {}, "biases"),
    ("sft", {"packing": True}, "plain"),
    ("dpo", {"reference": "adapter"}, "biases"),
    ("dpo", {"reference": "cached"}, "plain"),
    ("rm", {}, "biases"),
    ("rm", {}, "plain"),
]


def weights_of(model):
    """With buffers and what a 4-bit weight is expanded with."""
    for tensor in [*model.parameters(), *model.buffers()]:
        yield tensor
        if (state := getattr(tensor, "quant_state", None)) is not None:
            yield from (state.absmax, state.code, state.state2.absmax, state.state2.code)


@pytest.mark.parametrize(("command", "flags", "kind"), few(CASES))
def test_a_stage_holds_what_is_planned(command, flags, kind, monkeypatch, bases, tmp_path):
    """After a step: its trainer, the micro-batch, and what autograd has saved of a forward pass."""
    from unslothrl.offline import training
    from unslothrl.offline.run import run

    rows = [{"prompt": "What is it?", "chosen": "x" * n, "rejected": "y" * 40} for n in WORDS]
    data = rows_in(tmp_path, rows)
    given = {
        "model": str(bases[kind]), "dataset": data, "eval_dataset": (data,),
        "output_dir": str(tmp_path / "runs"), "run_name": "r", "max_steps": "1",
        "batch_size": "4", "train_batch_size": "2", "max_lora_rank": "8", "eval_every": "0",
        "max_length": "160", "dtype": "bfloat16", **flags,
    }  # fmt: skip
    stage, kept = resolve(command, given), {}

    class Measured(training.TRAINERS[type(stage.options)]):
        def compute_loss(self, model, inputs, *rest, **named):
            def forward():
                kept["loss"] = compute_loss(model, inputs, *rest, **named)

            compute_loss = super().compute_loss
            kept.update(trainer=self, batch=dict(inputs))
            kept["bytes"] = saved_bytes(weights_of(model), forward)
            return kept["loss"]

    monkeypatch.setitem(training.TRAINERS, type(stage.options), Measured)
    assert run(stage) == 0
    trainer, batch, saved = kept["trainer"], kept["batch"], kept["bytes"]
    rows, length = batch["input_ids"].shape
    options = replace(stage.options, max_length=length)
    if flags.get("packing"):  # several packs lie side by side
        assert rows == 1 and options.micro_batch == 2
        options = replace(options, max_length=length // 2)
    assert stages.rows_of(options) * options.max_length == pytest.approx(rows * length, abs=1)
    shape = shapes.shape_of(options.model)
    planned = {name: mb * MB for name, mb in needs(options, shape, None).updating.items()}
    check_saved(command, batch, saved, planned, shape)
    check_trained(trainer, planned)
    if command == "dpo":
        check_reference(flags["reference"], trainer, planned)


def check_saved(command, batch, saved, planned, shape):
    """What autograd keeps, within 1%: the rest are rotary embeddings and indices. The mask's bytes
    are its caller's; of a logit's bytes half come with the backward pass."""
    of_mask = 2 * shape.layers / (1 + 2 * shape.layers)
    expected = planned["activations"] + of_mask * planned["attention mask"]
    if command == "rm":
        expected += batch["input_ids"].numel() * shape.hidden * 4
    else:
        learnt = batch["labels"] != -100 if "labels" in batch else batch["completion_mask"] == 1
        learnt = int(learnt[:, 1:].sum())
        assert learnt < batch["input_ids"].numel()
        expected += planned["logits"] / 2 * learnt / batch["input_ids"].numel()
    assert saved == pytest.approx(expected, rel=0.01)


def check_trained(trainer, planned):
    """Float32 values, gradients of the same size, and what the optimiser keeps."""
    trained = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert {p.element_size() for p in trained.values()} == {4}
    bytes_of = {name: 2 * p.numel() * 4 for name, p in trained.items()}
    for name, parameter in trained.items():
        kept = [t for t in trainer.optimizer.state[parameter].values() if t.numel() > 1]
        bytes_of[name] += sum(t.numel() * t.element_size() for t in kept)
    of_head = sum(size for name, size in bytes_of.items() if ".score." in name)
    assert sum(bytes_of.values()) - of_head == planned["adapter and optimiser"]
    if of_head:
        model = trainer.model.get_base_model()
        small = replace(SEVEN, hidden=model.config.hidden_size)
        head_mb = needs(RmOptions(max_length=0), small, None).updating["score head"]
        assert of_head + model.score.original_module.weight.nbytes == round(head_mb * MB)


def check_reference(kind, trainer, planned):
    copies = [p for n, p in trainer.model.named_parameters() if ".ref." in n]
    assert sum(p.numel() * p.element_size() for p in copies) == planned.get("reference", 0)
    assert bool(copies) == (kind == "adapter")
    if kind == "cached":
        table = trainer.train_dataset.data.table
        columns = [table.column(name) for name in ("ref_chosen_logps", "ref_rejected_logps")]
        assert sum(c.nbytes for c in columns) / MB == Reference(0, len(WORDS)).cached_mb


def test_the_run_and_the_plan_say_the_same_of_the_reference(make_backend, bases):
    """Though the one counts the model's weights and the other computes them."""
    from unslothrl.offline import training

    model = make_backend(bases["plain"]).model
    shape = shapes.shape_of(str(bases["plain"]))
    for pairs in (3, 10_000):
        said: list[str] = []
        tables = SimpleNamespace(train=[None] * pairs, evaluation=[None] * 7)
        view = SimpleNamespace(note=said.append)
        run = SimpleNamespace(tables=tables, checkpoint=None, view=view)
        planned = Reference.of(DpoOptions(), shape.lora_weights(8), pairs, 7)
        assert training.is_reference_cached(DpoOptions(), model, run) == planned.is_cached
        assert said == [planned.line()]
    assert Reference(1000, 499).is_cached and not Reference(1000, 500).is_cached


def test_a_run_that_ends_before_it_has_read_half_of_its_pairs_keeps_a_copy():
    """One that computes the reference of 60,000 pairs for 100 steps would wait for hours."""
    options = DpoOptions(max_steps=100, batch_size=16, eval_every=0)
    found = Reference.of(options, 10**8, 3191, 10)
    assert not found.is_cached and "3201 pairs, of which the run reads 1600; a" in found.line()
    evaluated = Reference.of(replace(options, eval_every=50), 10**8, 3191, 10)
    assert evaluated.read == 1630 and evaluated.is_cached  # before, and after 50 and 100
    assert Reference.of(options, 10**8, 1600, 10).is_cached  # all are read
    assert Reference.of(DpoOptions(), 10**8, 9999, 1).is_cached


def test_a_plan_by_hand():
    options = options_of(train_batch_size=2, max_length=1000)
    found = {name: mb * MB for name, mb in needs(options, SEVEN, GPU).updating.items()}
    tokens, largest = 2000, 2 * 3584 * 18_944
    layer = 28 * 3584 + 8 * 3584 + 4 * 512 + 10 * 18_944 + 28 * 32 + 4 * 28 + 8
    assert found["weights"] == pytest.approx(SEVEN.weight_bytes())
    assert found["adapter and optimiser"] == SEVEN.lora_weights(32) * (4 + 4 + 2 + 8 / 256)
    assert found["activations"] == pytest.approx(
        28 * tokens * 3584 * 2 + tokens * layer + largest + tokens * 3584 * 4
    )
    assert found["attention mask"] == 2 * 1000**2 * 3
    assert found["logits"] == 2000 * 32_768 * 2 + tokens * 3584 * 8
    assert found["CUDA context"] == 600 * MB
    packed = needs(replace(options, packing=True), SEVEN, GPU).updating
    assert packed["attention mask"] * MB == 2000**2 * 3
    assert packed["activations"] * MB == found["activations"]


def test_pairs_are_two_rows_and_a_reward_model_has_no_logits():
    sft = needs(options_of(), SEVEN, GPU).updating
    dpo = needs(options_of(DpoOptions, reference="adapter"), SEVEN, GPU).updating
    cached = needs(options_of(DpoOptions, reference="cached"), SEVEN, GPU)
    rm = needs(options_of(RmOptions), SEVEN, GPU).updating
    largest = 2 * 3584 * 18_944 / MB
    assert dpo["activations"] - largest == pytest.approx(2 * (sft["activations"] - largest))
    assert dpo["reference"] == SEVEN.lora_weights(32) * 4 / MB
    assert "reference" not in cached.updating
    assert rm["activations"] == dpo["activations"] and "logits" not in rm
    assert (sft["weights"] - rm["weights"]) * MB == pytest.approx(152_064 * 3584 * 2)
    tied = KNOWN["qwen2.5-3b"]
    assert needs(options_of(RmOptions), tied, GPU).updating["weights"] * MB == tied.weight_bytes()
    assert rm["score head"] * MB == 3584 * 18 + 8 * 1024 * 3584 * 4


@pytest.mark.parametrize("kind", [SftOptions, DpoOptions, RmOptions])
@pytest.mark.parametrize("gb", [4, 6, 12, 24])
@pytest.mark.parametrize("length", [512, 4096])
def test_a_stage_is_fitted_or_refused_with_what_would_fit(kind, gb, length):
    machine = cards(gb)
    gpu, options = machine.gpus[0], options_of(kind, max_length=length)
    found = stages.fit(options, {"max_length"}, machine)
    assert found.options.max_length == length  # what is trained on is never changed
    if not found.refusal:
        assert needs(found.options, SEVEN, gpu).peak_mb() <= usable_mb(gpu)
        assert bool(found.notes) == (found.options.train_batch_size != 4)
    elif "choose a smaller model" in found.refusal:
        least = replace(options, train_batch_size=1, max_length=stages.LEAST_LENGTH)
        assert not stages.fits(least, SEVEN, gpu)
    else:
        words = found.refusal.partition(": set ")[2].partition(", or start")[0].split()
        flags = {name: int(value) for name, value in config_of(words).items()}
        again = stages.fit(replace(options, **flags), {*flags, "max_length"}, machine)
        assert flags and not again.refusal
    given = stages.fit(options, {"train_batch_size", "max_length"}, machine)
    assert given.options == options
    assert bool(given.refusal) != stages.fits(options, SEVEN, gpu)
    off = stages.fit(replace(options, fit="off"), frozenset(), machine)
    assert off == stages.Fitted(replace(options, fit="off"))


def test_rows_fit_the_models_context():
    machine, short = Machine(2, 8000), options_of(model="Qwen/Qwen2.5-Math-7B", max_length=5000)
    found = stages.fit(short, frozenset(), machine)
    assert found.options.max_length == 4096 and "context is 4096" in found.notes[0]
    with pytest.raises(UserError, match=r"\(4096 tokens\): set --max_length 4096$"):
        stages.fit(short, {"max_length"}, machine)
    unknown = options_of(model="google/gemma-2-2b-it")
    assert "size is not known" in stages.fit(unknown, frozenset(), cards(8)).notes[0]


@pytest.mark.parametrize("command", list(TABLES))
def test_the_command_says_what_fits_and_what_to_paste(command, capsys):
    flags = [command, "--model", MODEL, "--dataset", "a/b", "--lr", "1e-5", "--card"]
    text = said([*flags, "12"], capsys)
    assert f"{command} of {MODEL}" in text and text.startswith("fits: a GPU of 12 GB needs ")
    assert ("score head" in text) == (command == "rm") == ("logits" not in text)
    found = as_json([*flags, "12"], capsys)
    assert found["fits"] and found["would_fit_with"] is None
    (card,) = found["cards"]
    (parts,) = (process["training"].values() for process in card["processes"])
    assert sum(parts) == pytest.approx(card["needed_mb"], abs=1)
    for best in found["settings"].values():
        words = shlex.split(best["command"])
        assert command in words[:4] and "1e-05" in words
        given = config_of(words[words.index(command) + 1 :])
        again = stages.fit(resolve(command, given).options, frozenset(given), cards(12))
        assert not again.refusal and again.options.max_length == best["max_length"]
        assert again.options.train_batch_size == best["train_batch_size"]
    assert "DOES NOT FIT" in said([*flags, "4"], capsys)


def test_what_cannot_be_planned_is_refused_and_the_embedded_run_needs_no_card(capsys):
    assert cli.main(["plan", "dpo", "--model", "google/gemma-2-2b-it", "--dataset", "a/b"]) == 2
    assert "sizes are not known" in capsys.readouterr().err
    assert cli.main(["plan", "dpo", "--max_length", "5000"]) == 2
    assert "over the context of embedded (4096 tokens)" in capsys.readouterr().err
    assert "no GPU: everything is in the host's memory" in said(["dpo"], capsys)
    assert as_json(["dpo"], capsys)["cards"] == []


def test_a_steps_time_by_hand():
    low, high = forecast.stage_seconds(options_of(batch_size=10, max_length=1000), SEVEN, GPU)
    one = 6 * SEVEN.parameters() * 10 * 1000
    assert low == pytest.approx(one / 4 / (0.5 * 165e12))
    assert high == pytest.approx(one / (0.5 * 60e12))
    packed = forecast.stage_seconds(options_of(packing=True), SEVEN, GPU)
    assert packed[0] == pytest.approx(4 * forecast.stage_seconds(options_of(), SEVEN, GPU)[0])
    pairs = [forecast.stage_seconds(options_of(DpoOptions, reference=kind), SEVEN, GPU)[1]
             for kind in ("cached", "adapter")]  # fmt: skip
    rm = forecast.stage_seconds(options_of(RmOptions), SEVEN, GPU)[1]
    assert pairs == pytest.approx([rm, 8 / 6 * rm])


def test_the_time_of_judging_is_part_of_a_step():
    config = replace(MAIN, batch_size=8, num_candidates=16, max_num_seqs=64)
    judged = replace(config, reward=("accuracy", "rm:runs/judge=0.5"))
    tokens = 8 * 16 * (350 + 1200)
    resources = Resources.of_machine(config, cards(24))
    steps = [
        forecast.seconds_of(c, SEVEN, place(c, resources, shape=SEVEN).cards)["step_seconds"]
        for c in (config, judged)
    ]
    low, high = (b - a for a, b in zip(*steps, strict=True))
    assert high == pytest.approx(2 * SEVEN.parameters() * tokens / (0.5 * 60e12))
    assert low == pytest.approx(2 * SEVEN.parameters() * tokens / 4 / (0.5 * 165e12))


@pytest.mark.parametrize(("visible", "first"), [(None, "0"), ("GPU-aa,GPU-bb", "GPU-aa")])
def test_of_several_cards_the_first_is_used(visible, first, monkeypatch):
    from unslothrl.offline.run import on_first_card

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "unset")  # put back afterwards
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    stage = resolve("sft", {})
    assert on_first_card(stage, cards(8)) == stage
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    found = on_first_card(stage, cards(8, 8))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == first
    assert found.notes[-1] == "sft trains on one GPU: the first of 2 is used"


def test_a_run_takes_the_micro_batch_that_fits():
    flags = {"model": "unsloth/Qwen2.5-3B-bnb-4bit", "dataset": "a/b", "max_length": "4096"}
    stage = resolving.fitted(resolve("sft", flags), cards(8))
    assert stage.options.train_batch_size == 2
    assert "train_batch_size 4 -> 2: fits 8 GB" in stage.notes
    with pytest.raises(UserError, match="set --train_batch_size 2, or"):
        resolving.fitted(resolve("sft", {**flags, "train_batch_size": "4"}), cards(8))
    whole = resolving.fitted(resolve("sft", {**flags, "fit": "off"}), cards(8))
    assert whole.options.train_batch_size == 4 and not whole.notes


def test_rows_over_a_base_that_no_gpu_holds_alone(capsys):
    """70B in NF4 takes 37 GB: two share it, or four of half the size. Rewards are not shared."""
    flags = ["--model", "unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "--dataset", "x/y", "--gpu"]
    for gpus, shards in (("40,40", 2), ("24,24,24,24", 4)):
        assert cli.main(["plan", "sft", *flags, gpus]) == 0
        text = capsys.readouterr().out
        assert text.startswith("fits") and f"learner_shards 1 -> {shards}" in text
    assert cli.main(["plan", "rm", *flags, "24,24"]) == 0
    assert "DOES NOT FIT" in capsys.readouterr().out
