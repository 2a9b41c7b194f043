"""Actors over several cards: what is refused, which cards they get, and what the plan counts."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from adapters import SETTINGS, packed, tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import GB, card, machine_of
from test_node_watch import FakeNodes, installed, watch_on_cards  # noqa: F401 - a fixture

from unslothrl.cluster.ray_calls import process_environment
from unslothrl.commands import plan
from unslothrl.config.options import Config
from unslothrl.embedded import BASE
from unslothrl.engines.vllm_internals import EXTENSION, options
from unslothrl.engines.vllm_split import PublishedFile, lora_problem, part_of, set_variables_of
from unslothrl.errors import RunError, UserError
from unslothrl.planning.dividing import check_model, problem
from unslothrl.planning.footprint import EngineMemory
from unslothrl.planning.place import cards_of, place
from unslothrl.planning.placement import Placement, Resources
from unslothrl.records import LORA_TARGETS
from unslothrl.runs.resolve import resolve
from unslothrl.system import variables
from unslothrl.system.machine import Gpu
from unslothrl.weights import base_model
from unslothrl.weights.adapter import WEIGHTS_FILE, Adapter, NodeFiles
from unslothrl.weights.published import PackedWeights, Published
from unslothrl.weights.shapes import KNOWN, Shape

SEVEN = KNOWN["qwen2.5-7b"]
SPLIT = {"model": "Qwen/Qwen2.5-7B-Instruct", "actor_tensor_parallel": "2"}


def cards(*sizes_gb: int) -> tuple[Gpu, ...]:
    return tuple(card(gb, index=index) for index, gb in enumerate(sizes_gb))


def placed(*sizes_gb: int, nodes: tuple[int, ...] = (), **flags: str) -> Placement:
    machine = machine_of(cards(*sizes_gb))
    config = resolve({**SPLIT, **flags}, machine).config
    return place(config, replace(Resources.of_machine(config, machine), card_nodes=nodes))


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"number_of_actors": "0"}, "change --number_of_actors"),
        ({"cluster": "local"}, "leave --actor_tensor_parallel out"),
        ({"engine": "transformers"}, "change --engine"),
        ({"model": "unsloth/Qwen2.5-7B-Instruct-bnb-4bit"}, "quantised already"),
        ({"actor_tensor_parallel": "3"}, "28 attention heads .* set --actor_tensor_parallel 2"),
        ({"number_of_actors": "2"}, "hold 1 of 2 actors .* lower --number_of_actors"),
    ],
)
def test_what_an_actor_over_two_cards_cannot_have(flags, line):
    with pytest.raises(UserError, match=line):
        resolve({**SPLIT, **flags}, machine_of(cards(24, 24, 24, 24)))


def test_heads_that_the_loader_would_have_to_repeat_are_refused():
    """7B has 28 heads of queries and 4 of keys: vLLM could repeat those, its loader of 4-bit
    weights cuts them instead."""
    assert problem(SEVEN, 7) == "4 heads of keys and values"
    assert [n for n in range(1, 29) if problem(SEVEN, n) is None] == [1, 2, 4]
    three = KNOWN["qwen2.5-3b"]  # 16 heads, 2 of keys, width 11,008 = 172 blocks
    assert [n for n in range(1, 17) if problem(three, n) is None] == [1, 2]
    assert [n for n in range(1, 33) if problem(KNOWN["llama-3.1-8b"], n) is None] == [1, 2, 4, 8]


def test_blocks_and_vocabularies_that_the_cards_would_cut_are_refused():
    whole = Shape(2, 128, 384, 4, 4, 32, 320, tied=False)
    assert problem(whole, 2) is None
    assert problem(whole, 4) == "attention's width of 128 in whole blocks of 64"  # 32 a card
    assert problem(replace(whole, head=64), 4) == "MLP's width of 384 in whole blocks of 64"  # 96
    assert problem(replace(whole, inner=448), 2) == "MLP's width of 448 in whole blocks of 64"
    six = Shape(2, 384, 1152, 6, 6, 64, 320, tied=False)
    assert problem(six, 3) == "vocabulary of 320 (padded)"
    assert problem(replace(six, vocabulary=321), 3) is None  # 384


def test_what_a_checkpoint_says_of_itself_is_refused(tmp_path):
    """Its name says nothing."""
    for changed, line in (
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised already"),
        ({"num_key_value_heads": 1}, "1 heads of keys and values"),
    ):
        settings = {**json.loads((BASE / "config.json").read_text()), **changed}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        with pytest.raises(UserError, match=line):
            check_model(Config(model=str(tmp_path), actor_tensor_parallel=2))
    check_model(Config(model=str(tmp_path)))  # one card takes it


def test_three_cards_hold_a_learner_and_an_actor_over_two():
    """By hand: the actor's vLLM has 0.95 of each of its cards less 1,900 of 24,576 MB."""
    placement = placed(24, 24, 24)
    learner, actor = placement.processes
    assert (learner.cards, actor.cards) == ((0,), (2, 1))
    assert actor.engine() == EngineMemory(None, 0.872, 8192)
    assert not actor.takes_turns
    assert placement.rounds() == [(learner, actor)]
    assert [[p.name for p in each.processes] for each in placement.cards] == [
        ["learner-0"], ["actor-0"], ["actor-0"],
    ]  # fmt: skip


def test_an_actor_gets_the_engine_of_its_smallest_card():
    actor = placed(24, 12, 24).actors[0]
    assert actor.gpu.memory_mb == 12 * GB or set(actor.cards) == {0, 2}
    (of_both,) = placed(12, 24, 24, 24, number_of_learners="2").actors
    assert of_both.cards == (0, 3) and of_both.gpu.memory_mb == 12 * GB


def dealt(gpus, learners, actors, each, nodes):
    config = Config(
        number_of_learners=learners, number_of_actors=actors, actor_tensor_parallel=each
    )
    return cards_of(config, Resources(tuple(gpus), 0, (), tuple(nodes)))


@pytest.mark.parametrize(
    ("nodes", "learners", "actors", "own", "groups"),
    [
        ((0, 0, 1, 1, 1), 1, 2, [2], {(1, 0), (4, 3)}),  # the odd one is the learner's
        ((0, 0, 0, 1, 1, 1, 1), 1, 3, [0], {(2, 1), (4, 3), (6, 5)}),
        ((0, 0, 0, 1, 1, 1), 2, 2, [0, 3], {(2, 1), (5, 4)}),  # one of each node
        ((0, 0, 0, 1, 1, 1), 2, 1, [1, 2], {(4, 3)}),  # learners on one node where that can be
    ],
)
def test_learners_take_what_leaves_whole_groups(nodes, learners, actors, own, groups):
    found_own, found = dealt([card(24)] * len(nodes), learners, actors, 2, nodes)
    assert found_own == [(each,) for each in own]
    assert set(found) == groups


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([8, 12, 24, 80]), st.integers(0, 3)), max_size=9),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 4),
)
def test_every_way_that_there_is_is_found(found, learners, actors, each):
    """No card twice, groups of one node; refused only where no choice of the learners' cards leaves
    enough groups."""
    gpus, nodes = [card(gb) for gb, _ in found], [node for _, node in found]
    if not gpus:
        return
    counts = [nodes.count(node) for node in sorted(set(nodes))]
    can = max(groups_left(counts, learners, each), default=-1) >= actors
    try:
        own, groups = dealt(gpus, learners, actors, each, nodes)
    except UserError:
        assert not can
        return
    assert can and len(own) == learners and len(groups) == actors
    used = [card for cards in (*own, *groups) for card in cards]
    assert len(used) == len(set(used)) == learners + actors * each
    assert all(len({nodes[card] for card in cards}) == 1 for cards in groups)
    smallest = [gpus[cards[0]].memory_mb for cards in groups]
    assert smallest == [min(gpus[c].memory_mb for c in cards) for cards in groups]


def groups_left(counts: list[int], learners: int, each: int) -> list[int]:
    """The groups that each way to take the learners' cards from nodes with so many leaves."""
    if not counts:
        return [0] if learners == 0 else []
    first, *others = counts
    return [
        (first - taken) // each + groups
        for taken in range(min(first, learners) + 1)
        for groups in groups_left(others, learners - taken, each)
    ]


def test_an_actor_sees_all_its_cards(monkeypatch, tmp_path):
    placement = placed(24, 24, 24, 24, 24, number_of_actors="2")
    machine = machine_of(cards(24, 24, 24, 24, 24))
    monkeypatch.delenv(variables.VISIBLE, raising=False)
    seen = [process_environment(machine, tmp_path, each) for each in placement.processes]
    assert [each[variables.VISIBLE] for each in seen] == ["0", "2,1", "4,3"]
    monkeypatch.setenv(variables.VISIBLE, "7,GPU-a,GPU-b,3,1")
    seen = [process_environment(machine, tmp_path, each) for each in placement.processes]
    assert [each[variables.VISIBLE] for each in seen] == ["7", "GPU-b,GPU-a", "1,3"]
    assert all(each[variables.KEEP_VISIBLE] == "1" for each in seen)


def split_watch(**more: tuple[float, int]):
    """Node a has the learner's card, node b the two cards of an actor."""
    nodes = FakeNodes(a=(16, 1), b=(16, 2), **more)
    nodes.config = replace(nodes.config, actor_tensor_parallel=2)
    watch = watch_on_cards(nodes, zero="b")
    nodes.cards.append(nodes.card("b"))
    watch.plans["actor-0"] = replace(watch.plans["actor-0"], cards=(1, 2))
    watch.cards[2] = "b"
    return nodes, watch


@pytest.mark.usefixtures("installed")
def test_an_actor_whose_node_has_gone_takes_two_cards_of_another():
    nodes, watch = split_watch(c=(16, 1), d=(16, 3))
    watch.place("actor-0")
    assert watch.plans["actor-0"].cards == (1, 2)
    del nodes.alive["b"]
    with pytest.raises(RunError, match="no other has 2 free GPUs yet"):
        watch.place("actor-0")
    assert nodes.given_back == ["b", "b"]
    watch.look()
    watch.place("actor-0")
    plan = watch.plans["actor-0"]
    assert plan.node.id == "d" and len(plan.cards) == 2
    assert all(watch.cards[card] == "d" for card in plan.cards)


@pytest.mark.usefixtures("installed")
def test_a_node_that_comes_gets_an_actor_for_every_two_cards():
    nodes, watch = split_watch()
    nodes.alive["c"], nodes.free["c"] = (16, 5), 5
    nodes.alive["d"], nodes.free["d"] = (16, 1), 1
    changes = watch.changes()
    assert changes.joined == ("actor-1", "actor-2")
    assert sorted(nodes.given_back) == ["c", "d"] and nodes.free["c"] == nodes.free["d"] == 1
    taken = [card for name in changes.joined for card in watch.plans[name].cards]
    assert len(set(taken)) == 4 and all(watch.cards[card] == "c" for card in taken)


def test_a_card_holds_half_of_a_model_over_two():
    """7B by hand: 28 layers, of a card 14 of 28 heads, 2 of 4 heads of keys, 9,472 of 18,944."""
    part = SEVEN.shard(2)
    assert part.linear_weights() == 28 * 116_523_008 == SEVEN.linear_weights() // 2
    assert part.other_weights() == 76_032 * 3584 * 2 + 28 * (2 * 3584 + 1792 + 2 * 256) + 3584
    # A of q, k, v, gate and up is whole on every card, and so is B of o and down
    lora = (3584 + 1792) + 2 * (3584 + 256) + (1792 + 3584) + 2 * (3584 + 9472) + (9472 + 3584)
    assert lora == 57_600 and part.lora_weights(32) == 28 * 57_600 * 32
    assert part.kv_bytes(1) == 28 * 2 * 256 * 2
    assert SEVEN.shard(8).kv_heads == 1  # repeated: each card has a whole one
    assert SEVEN.shard(1) is SEVEN


def test_what_each_card_of_an_actor_holds():
    placement = placed(16, 16, 16, max_num_seqs="8", learner_chunk_size="0")
    actor = placement.actors[0]
    parts = actor.needs.generating
    assert parts["weights"] * 2**20 == pytest.approx(SEVEN.shard(2).engine_bytes())
    assert parts["adapter"] * 2**20 == 28 * 57_600 * 32 * 2
    assert parts["activations"] * 2**20 == 8192 * (2 * 9472 + 4 * 3584) * 2 + 8 * 152_064 * 12
    share = actor.engine().utilisation * 16 * GB
    names = ("weights", "adapter", "activations", "KV cache")
    assert sum(parts[name] for name in names) == pytest.approx(share)
    assert actor.needs.host["vLLM's workers"] == 2 * actor.needs.host["PyTorch and the engine"]
    assert actor.needs.host["policy versions"] * 2**20 == 2 * SEVEN.lora_weights(32) * 2
    first, second = (each for each in placement.cards if each.processes[0] is actor)
    assert first.needed_mb() == second.needed_mb() == pytest.approx(sum(parts.values()))
    assert first.fits


def test_the_plan_shows_it(capsys):
    plan.forecast("train", SPLIT, "24,24,24", as_json=False)
    text = capsys.readouterr().out
    assert text.count("actor-0, each of its 2 GPUs") == 2 and "--actor_tensor_parallel 2" in text
    with pytest.raises(UserError, match="leave --actor_tensor_parallel out"):
        plan.forecast("train", SPLIT, "24,24", as_json=True)


def test_the_keywords_of_a_split_vllm():
    given = {"dtype": "bfloat16", "context": 256, "rank": 8, "max_num_seqs": 4, "seed": 0,
             "memory": EngineMemory(64), "takes_turns": False, "on_gpu": True}  # fmt: skip
    assert options(Path("base"), **given, workers=2) == {
        **options(Path("base"), **given),
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "distributed_executor_backend": "mp",
        "quantization": "bitsandbytes",
        "worker_extension_cls": EXTENSION,
    }


def test_the_parts_of_a_packed_matrix():
    """4 outputs of 8 inputs, two values a byte: by outputs two rows each, by inputs half of every
    row."""
    values = (torch.arange(32) % 16).to(torch.uint8)
    packed = values[0::2] * 16 + values[1::2]
    whole = values.view(4, 8)

    def unpacked(part: torch.Tensor, *shape: int) -> torch.Tensor:
        return torch.stack([part >> 4, part & 15], dim=1).view(shape)

    for rank in (0, 1):
        rows = unpacked(part_of(packed, (2, 8), False, rank), 2, 8)
        assert torch.equal(rows, whole[2 * rank : 2 * rank + 2])
        columns = unpacked(part_of(packed, (4, 4), True, rank), 4, 4)
        assert torch.equal(columns, whole[:, 4 * rank : 4 * rank + 4])


@pytest.mark.real
def test_parts_that_are_quantised_alone_have_the_values_of_the_whole():
    """What vLLM's loader does with its part of a 16-bit matrix. The scales differ a little, so the
    workers take those of the whole."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    whole = PackedWeights(base_model.prepare("embedded"))
    assert len(whole.files) == 4 * 7
    source = safetensors.torch.load_file(BASE / "model.safetensors")
    for target in LORA_TARGETS:
        parent = "self_attn" if target in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
        name = f"model.layers.1.{parent}.{target}.weight"
        by_input = target in ("o_proj", "down_proj")
        _, state = quantize_4bit(source[name], compress_statistics=True, quant_type="nf4")
        values = dequantize_4bit(whole.tensor(name).view(-1, 1), state).float()
        for rank in (0, 1):
            part = source[name].chunk(2, dim=int(by_input))[rank].contiguous()
            shape = tuple(part.shape)
            packed, state = quantize_4bit(part, compress_statistics=True, quant_type="nf4")
            expected = part_of(whole.tensor(name), shape, by_input, rank)
            assert torch.equal(packed.flatten(), expected), name
            together = values.chunk(2, dim=int(by_input))[rank]
            alone = dequantize_4bit(packed, state).float()
            assert 0.001 < (alone - together).norm() / together.norm() < 0.01
            state.absmax = part_of(whole.scales(name), shape, by_input, rank, each=64)
            state.nested, state.offset, state.state2 = False, None, None
            assert torch.equal(dequantize_4bit(packed, state).float(), together)


def test_a_file_that_is_not_what_was_published_is_named(tmp_path):
    adapter = Adapter.of(7, packed(tensors()), json.dumps(SETTINGS))
    folder = NodeFiles(tmp_path / "room").hold(adapter)
    file = PublishedFile(adapter.version, folder, adapter.config, adapter.checksum)
    again = pickle.loads(pickle.dumps(file))  # as it goes to the workers
    assert len(pickle.dumps(file)) < 5_000
    assert again.read().tensors.keys() == Published(adapter).tensors.keys()
    data = bytearray((folder / WEIGHTS_FILE).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS_FILE).write_bytes(data)
    said = lora_problem(1, again, None)
    assert said is not None and "not what was published (adapter v7 arrived damaged" in said
    (folder / WEIGHTS_FILE).unlink()
    assert "not what was published" in str(lora_problem(1, again, None))


def test_the_workers_share_the_threads_of_their_actor(monkeypatch):
    names = ("OMP_NUM_THREADS", "VLLM_WORKER_MULTIPROC_METHOD")
    monkeypatch.setenv(names[1], "")
    for threads, workers, each in (("16", 4, "4"), ("7", 2, "3"), ("1", 2, "1")):
        monkeypatch.setenv(names[0], threads)
        set_variables_of(workers)
        assert [os.environ[name] for name in names] == [each, "spawn"]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"context_parallel": 3}, "context_parallel 3: 3 GPUs cannot share the 28 attention heads"),
        ({"learner_tensor_parallel": 8}, "cannot share the 28 attention heads .* set --learner_t"),
        ({"pipeline_stages": 29}, "cannot share the 28 layers .* set --pipeline_stages 28"),
        ({"actor_pipeline_parallel": 64}, "cannot share the 28 layers"),
    ],
)
def test_a_learner_that_cannot_be_divided_so_is_refused(flags, line):
    with pytest.raises(UserError, match=line):
        check_model(Config(model="unsloth/Qwen2.5-7B-Instruct-bnb-4bit", **flags))
    check_model(Config(model="unsloth/Qwen2.5-7B-Instruct-bnb-4bit", context_parallel=4))
