"""What is not given fits the machine, and every change is a line."""

import dataclasses
import json

import pytest

from unslothrl.errors import UserError
from unslothrl.planning.forecast import forecast_of
from unslothrl.runs.resolve import resolve
from unslothrl.system import machine, variables
from unslothrl.system.machine import Gpu, Machine
from unslothrl.weights import shapes

ALL = frozenset({"vllm", "unsloth", "ray"})
NAME = "unsloth/Qwen2.5-{}-Instruct-bnb-4bit"


def gpus(*sizes_mb, capability=(8, 6), **more):
    cards = tuple(Gpu(f"card{mb // 1024}", mb, mb - 300, capability) for mb in sizes_mb)
    return Machine(cpus=8, ram_mb=32_000, gpus=cards, **({"packages": ALL, "online": True} | more))


def cpu(packages=("vllm", "ray"), **more):
    return Machine(cpus=2, ram_mb=12_000, packages=frozenset(packages), **more)


@pytest.mark.parametrize(
    ("memory_mb", "model"),
    [(4_096, "0.5B"), (8_192, "1.5B"), (12_288, "3B"), (16_376, "7B"), (81_559, "7B")],
)
def test_the_model_follows_the_card_and_fits_by_the_estimate(memory_mb, model):
    resolved = resolve({}, gpus(memory_mb))
    config = resolved.config
    assert config.model == NAME.format(model)
    assert (config.dataset, config.number_of_actors) == ("openai/gsm8k:main", 0)
    assert any(note.startswith("model ") for note in resolved.notes) == (model != "7B")
    found = forecast_of(config, shapes.shape_of(config.model), gpus(memory_mb))
    assert found.placement.cards[0].needed_mb() <= 0.95 * memory_mb


def test_a_small_card_lowers_everything_and_says_so():
    assert resolve({}, gpus(4_096)).notes == (
        f"model {NAME.format('7B')} -> {NAME.format('0.5B')}: fits 4 GB",
        "number_of_actors 2 -> 0: 1 GPU",
        "learner_gpu_usage 0.35 -> 0.495: its engine sleeps while it updates",
    )


@pytest.mark.parametrize("cards", [1, 2])
def test_a_family_that_unsloth_shares_with_no_vllm_has_an_actor(cards):
    flags, machine = {"model": "Qwen/Qwen3.5-4B"}, gpus(*[16_376] * cards)
    config = resolve(flags, machine).config
    assert (config.number_of_actors, config.learner_chunk_size) == (1, 0)
    assert (config.backend, config.engine, config.learner_has_engine) == ("unsloth", "vllm", False)
    alone = resolve({**flags, "engine": "transformers"}, machine).config
    assert alone.number_of_actors == cards - 1
    shared = resolve({"model": "unsloth/gemma-3-4b-it"}, machine).config
    assert shared.learner_has_engine and shared.number_of_actors == cards - 1
    learners = {"number_of_learners": str(cards)}
    if cards > 1:
        with pytest.raises(UserError, match="leave a GPU to an actor"):
            resolve({**flags, **learners}, machine)
    for given in ({"number_of_actors": "0"}, {"learner_chunk_size": "8"}):
        with pytest.raises(UserError, match="cannot share the weights of a qwen3_5_text"):
            resolve({**flags, **given}, machine)


@pytest.mark.parametrize(("how", "longer"), [("largest", True), ("fastest", False)])
def test_fit_may_ask_for_the_largest_or_the_fastest(how, longer):
    flags = {"fit": how, "num_candidates": "4", "model": "Qwen/Qwen2.5-7B-Instruct"}
    config = resolve(flags, gpus(24_564)).config
    assert (config.max_new_tokens > 10_000) is longer
    assert (config.train_batch_size > 8) is not longer
    assert config.num_candidates == 4
    given = resolve({**flags, "max_new_tokens": "500", "train_batch_size": "3"}, gpus(24_564))
    assert (given.config.max_new_tokens, given.config.train_batch_size) == (500, 3)
    off = resolve({**flags, "fit": "off"}, gpus(6_144)).config
    assert (off.max_new_tokens, off.max_num_seqs, off.train_batch_size) == (1200, None, 8)


def test_given_values_are_never_changed_but_doubted():
    flags = {"model": NAME.format("7B"), "max_num_seqs": "128", "train_batch_size": "8"}
    flags |= {"num_candidates": "16", "max_new_tokens": "1200", "number_of_actors": "1"}
    resolved = resolve(flags, gpus(8_192))
    assert {name: str(getattr(resolved.config, name)) for name in flags} == flags
    assert any("this may run out of memory" in note for note in resolved.notes)
    kept = resolve({"topk": "16"}, gpus(4_096)).config
    assert (kept.topk, kept.num_candidates) == (16, 16)


def test_a_t4_gets_float16_and_the_learners_own_engine():
    resolved = resolve({}, gpus(15_360, capability=(7, 5)))
    assert (resolved.config.dtype, resolved.config.engine) == ("float16", "transformers")
    assert "dtype auto -> float16: card15 has no bfloat16" in resolved.notes
    asked = resolve({"engine": "vllm"}, gpus(15_360, capability=(7, 5)))
    assert asked.config.engine == "vllm"
    assert any(note.startswith("engine vllm: its 4-bit layers") for note in asked.notes)


@pytest.mark.parametrize(("cards", "actors"), [(1, 0), (2, 1), (3, 2), (8, 2)])
def test_actors_follow_the_number_of_cards(cards, actors):
    assert resolve({}, gpus(*[24_564] * cards)).config.number_of_actors == actors


def test_the_embedded_default_on_a_cpu_changes_nothing_silently():
    resolved = resolve({}, cpu())
    chosen = {"model": "embedded", "dataset": "embedded", "engine": "vllm", "backend": "peft"}
    chosen |= {"dtype": "bfloat16", "cluster": "ray"}
    assert {name: getattr(resolved.config, name) for name in chosen} == chosen
    assert resolved.notes == ()


def test_a_gpu_without_the_hub_trains_the_embedded_base():
    resolved = resolve({}, gpus(24_564, online=False))
    assert (resolved.config.model, resolved.config.lr) == ("embedded", resolve({}, cpu()).config.lr)
    assert resolved.notes[0].startswith("model and dataset -> embedded: ")


def test_what_is_missing_is_one_line_each_with_the_command():
    resolved = resolve({}, cpu(packages=()))
    config = resolved.config
    assert (config.engine, config.backend, config.cluster) == ("transformers", "peft", "local")
    engine, cluster = resolved.notes
    assert engine.endswith("is missing: unslothrl setup")
    assert cluster.endswith("Ray is not installed: unslothrl setup")
    notes = resolve({}, gpus(81_559, packages=frozenset({"ray", "vllm"}))).notes
    assert any(note.startswith("backend auto -> peft: Unsloth is not") for note in notes)


@pytest.mark.parametrize(
    ("flags", "machine", "words"),
    [
        ({"engine": "vllm"}, cpu(["ray"]), "engine vllm.*--engine transformers"),
        ({"cluster": "ray"}, cpu([]), "cluster ray.*unslothrl setup, or set --cluster local"),
    ],
)
def test_what_was_asked_for_and_is_missing_is_refused(flags, machine, words):
    with pytest.raises(UserError, match=words):
        resolve(flags, machine)


def test_one_process_holds_one_vllm(tmp_path):
    resolved = resolve({"cluster": "local"}, gpus(*[24_564] * 4))
    assert resolved.config.number_of_actors == 0
    assert "number_of_actors 2 -> 0: 1 GPU (--cluster local)" in resolved.notes
    flags = {"cluster": "local", "number_of_actors": "1", "learner_chunk_size": "0"}
    assert resolve(flags, gpus(24_564)).config.number_of_actors == 1
    assert resolve({"cluster": "local", "backend": "peft"}, cpu()).config.number_of_actors == 1


def local_model(folder, context):
    shape = shapes.KNOWN["qwen2.5-0.5b"]
    config = {
        "model_type": "qwen2", "num_attention_heads": 14, "num_key_value_heads": 2,
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "vocab_size": shape.vocabulary,
        "tie_word_embeddings": True, "max_position_embeddings": context,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_short_context_shortens_what_was_not_given_and_refuses_what_was(tmp_path):
    flags = {"model": local_model(tmp_path, 1024)}
    resolved = resolve(flags, cpu())
    assert resolved.config.max_new_tokens == 1024 - 350
    assert "max_new_tokens 1200 -> 674: the model's context is 1024 tokens" in resolved.notes
    with pytest.raises(UserError, match="set --max_new_tokens 674 or --max_prompt_tokens 24"):
        resolve({**flags, "max_new_tokens": "1000"}, cpu())


def test_a_local_model_on_a_cpu_gets_one_actor_and_a_small_kv_cache(tmp_path):
    model = local_model(tmp_path, 4096)
    shape = dataclasses.replace(shapes.KNOWN["qwen2.5-0.5b"], context=4096)
    assert shapes.shape_of(model) == shape
    resolved = resolve({"model": model}, cpu())
    assert "number_of_actors 2 -> 1: 2 CPUs" in resolved.notes
    assert "kv_cache_mb not set -> 1500: from 11.7 GB of memory" in resolved.notes


def test_a_cgroups_limits_count(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    free = machine.usable_cpus(), machine.usable_ram_mb()
    limited = ("50000 100000", str(512 * 2**20), (1, 512))
    for cpus, memory, expected in (("max 100000", "max", free), limited):
        (tmp_path / "cpu.max").write_text(cpus)
        (tmp_path / "memory.max").write_text(memory)
        assert (machine.usable_cpus(), machine.usable_ram_mb()) == expected


GB = 2**30
OF_A_JOB = {  # as Slurm and systemd make them: its own group has no limit, the one above has
    "v2": ("0::/job/step\n", {
        "job/memory.max": 4 * GB, "job/memory.current": 3 * GB, "job/cpu.max": "100000 100000",
        "job/memory.stat": f"active_file {GB}\ninactive_file {GB}\nfile 9",
        "job/step/memory.max": "max"}),
    "v1": ("5:memory:/job/step\n4:cpu,cpuacct:/job\n", {
        "memory/job/memory.limit_in_bytes": 4 * GB, "memory/job/memory.usage_in_bytes": 3 * GB,
        "memory/job/memory.stat": f"cache 9\ntotal_active_file {GB}\ntotal_inactive_file {GB}",
        "cpu/job/cpu.cfs_quota_us": 100_000, "cpu/job/cpu.cfs_period_us": 100_000}),
}  # fmt: skip


@pytest.mark.parametrize("version", OF_A_JOB)
def test_limits_of_the_groups_above_count_and_cached_files_are_free(tmp_path, monkeypatch, version):
    own, files = OF_A_JOB[version]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(content))
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")
    assert (machine.usable_cpus(), machine.usable_ram_mb()) == (1, 4096)
    assert machine.available_ram_mb() == 3072


@pytest.mark.parametrize(
    ("capabilities", "used", "problem"),
    [
        ([(8, 6), (6, 1)], 1, "card 1 has compute capability 6.1, and CUDA 13 needs 7.5"),
        ([(6, 0)], 0, "card 0 has compute capability 6.0, and CUDA 13 needs 7.5"),
        ([(8, 6), (7, 5)], 2, None),
    ],
)
def test_gpus_that_are_too_old_are_not_used(monkeypatch, capabilities, used, problem):
    gpus = [[f"card {i}", 8192, 8000, each, ""] for i, each in enumerate(capabilities)]
    said = json.dumps({"cuda": "13.0", "gpus": gpus})
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/bin/true")
    monkeypatch.setattr(machine, "answer_of", lambda *command: (0, f"{said}\n", ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found, why = machine.find_gpus.__wrapped__()
    assert (len(found), why) == (used, problem)


def test_a_program_that_does_not_answer_is_said_to(monkeypatch):
    monkeypatch.setattr(variables, "ANSWER_S", 0.1)
    code, said, why = variables.answer_of("sleep", "9")
    assert (code, said) == (1, "") and "timed out" in why
    assert variables.answer_of("/no/such/program")[0] == 1


def test_a_limit_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("UNSLOTHRL_CARD_MB", "16GB")
    with pytest.raises(UserError, match="UNSLOTHRL_CARD_MB must be a number of MB, got 16GB"):
        machine.card_limit_mb()


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_a_hub_that_does_not_answer(monkeypatch, environment):
    for name in ("HTTPS_PROXY", "https_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine.hub_answers() is False


@pytest.mark.parametrize(
    ("size", "cards", "tokens"),
    [("32B", [24_576] * 2, 1200), ("32B", [24_576] * 4, 1200), ("72B", [49_152] * 2, 1200)],
)
def test_a_model_that_no_gpu_holds_alone_is_divided(size, cards, tokens):
    resolved = resolve({"model": NAME.format(size)}, gpus(*cards))
    config = resolved.config
    assert config.learner_shards == config.number_of_learners == len(cards)
    assert config.actor_pipeline_parallel == 2 and config.number_of_actors == len(cards) // 2
    assert (config.backend, config.learner_chunk_size) == ("peft", 0)
    assert config.max_new_tokens == tokens
    assert any(note.startswith("learner_shards 1 ->") for note in resolved.notes)
    found = forecast_of(config, shapes.shape_of(config.model), gpus(*cards))
    assert all(card.fits for card in found.placement.cards)
    (one, *_), actor = found.placement.learners, found.placement.actors[0]
    assert one.takes_turns and actor.takes_turns and len(actor.cards) == 2
    assert "weights" not in one.needs.generating and "weights" not in actor.needs.updating
    assert one.needs.host["model, between updates"] == one.needs.updating["weights"]


def test_what_fits_or_was_given_is_not_divided():
    assert resolve({}, gpus(16_376, 16_376)).config.learners_together == 1
    given = resolve({"model": NAME.format("32B"), "backend": "unsloth"}, gpus(24_564, 24_564))
    assert given.config.learners_together == 1
    assert any("may run out of memory" in note for note in given.notes)
    alone = resolve({"model": NAME.format("32B"), "fit": "off"}, gpus(24_564, 24_564)).config
    assert alone.learners_together == 1


def test_rows_that_no_gpu_holds_are_split():
    """8B with 64K tokens in one row: its base fits, what its layers compute with does not."""
    flags = {"model": "unsloth/Llama-3.1-8B-Instruct-bnb-4bit", "max_new_tokens": "64000"}
    config = resolve(flags, gpus(*[24_576] * 4)).config
    assert config.context_parallel == 4 and config.max_new_tokens == 64_000


def test_learners_and_actors_that_take_turns_generate_nothing_during_an_update():
    flags = {"model": NAME.format("32B"), "learner_shards": "2", "actor_pipeline_parallel": "2"}
    with pytest.raises(UserError, match=r"on 2 GPUs actors and learners take turns.*max_st"):
        resolve({**flags, "number_of_actors": "1", "max_staleness": "1"}, gpus(24_576, 24_576))
