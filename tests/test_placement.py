"""The placement: hand-computed cases, rules that hold for all, and what Ray makes of it."""

import os
import pickle
from collections import Counter
from dataclasses import replace

import pytest
from layouts import card
from ray_nodes import own_token

from unslothrl.cluster import joining
from unslothrl.cluster.ray_calls import process_environment
from unslothrl.config.options import Config
from unslothrl.config.toml_files import read_recipe
from unslothrl.errors import UserError
from unslothrl.planning.fit import with_engines
from unslothrl.planning.footprint import CHECK_ONLY, ON_A_CARD, EngineMemory, usable_mb
from unslothrl.planning.place import place
from unslothrl.planning.placement import LEARNER, Node, Placement, ProcessPlan, Resources
from unslothrl.runs.resolve import resolve
from unslothrl.system import variables
from unslothrl.system.machine import Gpu, Machine
from unslothrl.weights.shapes import KNOWN

MODEL = "unsloth/Qwen2.5-0.5B-Instruct-bnb-4bit"
UNSLOTH = Config(model=MODEL, learner="grpo", engine="vllm", backend="unsloth", max_num_seqs=8)
PEFT = replace(UNSLOTH, engine="transformers", backend="peft")
UNKNOWN = replace(UNSLOTH, model="someone/of-unknown-size")
BESIDE_ENGINE = sum(ON_A_CARD.values())  # 1600 MB: context and graphs


def cards(*sizes_gb: int) -> Resources:
    return Resources(tuple(card(size, index=index) for index, size in enumerate(sizes_gb)), 64_000)


def placed(resources: Resources, actors: int, learners: int = 1, config: Config = UNSLOTH, **more):
    """As `fit` and the cluster place it: with the options of the engines that were not given."""
    config = replace(config, number_of_actors=actors, number_of_learners=learners, **more)
    if config.model == MODEL:
        config = with_engines(config, frozenset(), KNOWN["qwen2.5-0.5b"], resources)
    return place(config, resources)


def share_mb(plan: ProcessPlan) -> float:
    return plan.share * plan.gpu.memory_mb


def by_card(placement: Placement) -> list[list[str]]:
    return [[p.name for p in placement.processes if p.card == card]
            for card in range(len(placement.gpus))]  # fmt: skip


def rounds_of(placement: Placement) -> list[list[str]]:
    return [[plan.name for plan in plans] for plans in placement.rounds()]


# By hand


def test_two_cards_of_24_gb_with_two_actors():
    """The actors share the second card. Of its 24,576 MB 95% are counted on: 11,673.6 MB each, of
    which 600 are for the CUDA context and 1,000 for the graphs: 10,073.6 / 24,576 = 0.4099."""
    placement = placed(cards(24, 24), actors=2)
    assert by_card(placement) == [["learner-0"], ["actor-0", "actor-1"]]
    shares = [share_mb(plan) for plan in placement.processes]
    assert shares == pytest.approx([23_347.2, 11_673.6, 11_673.6])
    for actor in placement.actors:
        assert actor.engine() == EngineMemory(None, 0.409, 8192) and not actor.takes_turns
    assert rounds_of(placement) == [["learner-0", "actor-0"], ["actor-1"]]


@pytest.mark.parametrize(("gb", "utilisation"), [(8, 0.754), (12, 0.819), (24, 0.884), (80, 0.91)])
def test_what_an_actor_with_a_card_of_its_own_is_given(gb, utilisation):
    """0.95 - 1600 / (1024 gb), and no more than the 0.91 of the options."""
    (actor,) = placed(cards(gb, gb), actors=1).actors
    assert actor.engine().utilisation == utilisation


def test_one_card_is_shared_by_turns():
    """The actor has what the learner, which stays on the card, leaves of 23,347.2 MB."""
    placement = placed(cards(24), actors=1)
    learner, actor = placement.processes
    assert share_mb(learner) == pytest.approx(learner.needs.generating_mb())
    assert share_mb(learner) + share_mb(actor) == pytest.approx(23_347.2)
    assert actor.engine().utilisation == CHECK_ONLY and actor.engine().kv_cache_mb > 100
    assert learner.takes_turns and actor.takes_turns
    assert [len(plans) for plans in placement.rounds()] == [1, 1]


def test_who_sleeps_on_a_card():
    learner, actor = placed(cards(24), actors=1, learner_chunk_size=0).processes
    assert (learner.takes_turns, actor.takes_turns) == (False, True)
    (learner,) = placed(cards(24), actors=0).processes
    assert learner.takes_turns


def test_a_model_of_unknown_size_shares_a_card_by_the_options():
    """The learner's engine 0.35 of 24,576 MB, its context and graphs; the rest is the actor's."""
    learner, actor = placed(cards(24), actors=1, config=UNKNOWN, actor_gpu_usage=0.6).processes
    assert learner.engine().utilisation == 0.35
    assert share_mb(learner) == pytest.approx(0.35 * 24_576 + 1_600)
    assert share_mb(actor) == pytest.approx(23_347.2 - 0.35 * 24_576 - 1_600)
    assert actor.engine().utilisation == 0.469  # 0.95 - 0.35 - 3200 / 24576


@pytest.mark.parametrize(
    ("sizes", "learners", "actors", "expected"),
    [
        ((24, 12), 1, 1, [["learner-0"], ["actor-0"]]),
        ((12, 24), 1, 1, [["actor-0"], ["learner-0"]]),  # no matter to the least: learners first
        ((24, 12), 1, 2, [["actor-0", "actor-1"], ["learner-0"]]),  # 12 each, not 6
        ((24, 12, 80), 1, 1, [["actor-0"], [], ["learner-0"]]),
        ((12, 12, 24), 1, 3, [["learner-0"], ["actor-0"], ["actor-1", "actor-2"]]),
        ((24, 24, 24, 24), 2, 5, [["learner-0"], ["learner-1"], ["actor-0", "actor-1"],
                                  ["actor-2", "actor-3", "actor-4"]]),
    ],
)  # fmt: skip
def test_who_gets_which_card(sizes, learners, actors, expected):
    assert by_card(placed(cards(*sizes), actors, learners)) == expected


def test_a_joined_cluster_is_planned_for_the_part_of_a_card_that_is_reserved():
    """Ray chooses the card, so the size comes from the process that is there."""
    placement = placed(Resources((None, None), 64_000), actors=2, config=UNKNOWN)
    assert rounds_of(placement) == [["learner-0", "actor-0"], ["actor-1"]]
    actor = placement.actors[0]
    assert (actor.gpu, actor.share) == (None, 0.475)
    assert actor.engine(card(24), 23_000) == EngineMemory(None, 0.409, 8192)
    assert actor.engine(card(80), 79_000) == EngineMemory(None, 0.455, 16_384)
    assert actor.engine(card(24), 9_000).utilisation == 0.325  # 8000 / 24576
    assert not placement.cards


def test_a_joined_cluster_with_one_card():
    """0.95 less the learner's 0.35 are the actor's: 0.6 - 1600 / 24576."""
    one = Resources((None,), 64_000)
    learner, actor = placed(one, actors=1, config=UNKNOWN).processes
    assert (learner.share, actor.share) == (pytest.approx(0.35), pytest.approx(0.6))
    assert actor.engine(card(24), 23_000).utilisation == 0.534


def node(name: str, memory_mb: int = 64_000, cpus: int = 8) -> Node:
    return Node(name, name, cpus, memory_mb, memory_mb)


def on_nodes(placement: Placement) -> dict[str, str]:
    return {plan.name: plan.node.id for plan in placement.processes}


def test_learners_are_together_and_actors_apart():
    """The two learners on the node with two cards, though another comes first; then an actor on
    each of the others before a second on one."""
    three = [(node("a"), [card(24)]), (node("b"), [card(24, index=1), card(24, index=2)]),
             (node("c"), [card(24, index=3), card(24, index=4)])]  # fmt: skip
    two, more = (placed(Resources.of_nodes(three), actors=n, learners=2) for n in (2, 3))
    assert on_nodes(two) == {"learner-0": "b", "learner-1": "b", "actor-0": "a", "actor-1": "c"}
    assert Counter(on_nodes(more).values()) == {"a": 1, "b": 2, "c": 2}


def test_cpu_actors_are_spread_by_cpus_as_far_as_memory_reaches():
    """A process needs 1,500 + 500 MB. The learner is where most memory is; 16 CPUs then take two
    processes where 8 take one, until a node's memory is full."""
    config = replace(PEFT, number_of_actors=5)
    nodes = [node("small", 8_000, 8), node("large", 64_000, 16), node("full", 1_000, 64)]
    placement = place(config, Resources((), 73_000, tuple(nodes)), base_mb=500)
    assert on_nodes(placement)["learner-0"] == "large"
    assert Counter(on_nodes(placement).values()) == {"large": 4, "small": 2}


def test_memory_is_counted_on_each_node_not_together():
    """Four nodes of 3,000 MB hold a process each, though together they have memory for six."""
    four = tuple(node(name, 3_000) for name in "abcd")
    place(replace(PEFT, number_of_actors=3), Resources((), 12_000, four), base_mb=500)
    with pytest.raises(UserError, match=r"number_of_actors: each of 5 .* the nodes hold 4 "):
        place(replace(PEFT, number_of_actors=4), Resources((), 12_000, four), base_mb=500)


@pytest.mark.parametrize(("name", "sizes"), [("two-cards-24", (24, 24)), ("two-nodes", (24, 12))])
def test_the_recipes_for_two_cards_fit(name, sizes):
    gpus = cards(*sizes).gpus
    packages = frozenset({"vllm", "unsloth", "ray"})
    machine = Machine(16, 64_000, 32_000, 500_000, gpus, packages, online=True)
    config = resolve({"recipe": name}, machine).config
    assert config.max_staleness == 1  # nothing was lowered
    assert config.train_batch_size == read_recipe(name)["train_batch_size"]
    two = Resources.of_nodes([(node("a"), gpus[:1]), (node("b"), gpus[1:])])
    for resources in (Resources.of_machine(config, machine), two):
        placement = place(config, resources)
        assert all(planned.fits for planned in placement.cards)
        assert not any(plan.takes_turns for plan in placement.processes)


def test_cpu_processes_must_fit_in_memory():
    config = replace(PEFT, engine="vllm", number_of_actors=2, kv_cache_mb=64)
    placement = place(config, Resources((), 24_000), base_mb=5_000)  # 3 x (1500 + 5000) = 19500
    assert placement.cards == () and placement.rounds() == [placement.processes]
    assert [p.engine() for p in placement.processes] == [None, *[EngineMemory(64)] * 2]
    with pytest.raises(UserError, match=r"3 processes needs about 6\.3 GB .*11\.7 GB for 1"):
        place(config, Resources((), 12_000), base_mb=5_000)


# For all


LAYOUTS = [(8,), (12,), (16,), (24,), (24, 24), (24,) * 3, (24,) * 4, (80,) * 8, (24, 12),
           (12, 24), (8, 24, 12, 80)]  # fmt: skip


def check(placement: Placement, gpus: tuple[Gpu, ...]) -> None:
    """What every placement on known cards must be."""
    processes = placement.processes
    assert pickle.loads(pickle.dumps(placement)) == placement
    assert [p.kind for p in processes] == sorted((p.kind for p in processes), reverse=True)
    assert all(p.card is not None and p.gpu == gpus[p.card] for p in processes)
    started = [p.name for plans in placement.rounds() for p in plans]
    assert sorted(started) == sorted({p.name for p in processes}) and len(started) == len(processes)
    for plans in placement.rounds():
        assert len({p.card for p in plans}) == len(plans)  # no two of a card at once
    for planned in placement.cards:
        check_card(planned.processes, planned.gpu)
        names = [p.name for p in planned.processes]
        assert [name for name in started if name in names] == names
    by_count = Counter(p.card for p in placement.actors)
    used = {p.card for p in processes}
    assert max(by_count.values(), default=1) == 1 or len(used) == len(gpus)  # none is idle


def check_card(processes: tuple[ProcessPlan, ...], gpu: Gpu) -> None:
    learners = [p for p in processes if p.kind == LEARNER]
    assert len(learners) <= 1
    assert sum(share_mb(p) for p in processes) <= usable_mb(gpu) + 0.01
    for p in processes:
        engine = p.engine()
        assert (engine is None) == (p.limits is None)
        if engine and engine.kv_cache_mb is None and engine.utilisation > CHECK_ONLY:
            assert engine.utilisation * gpu.physical_mb + BESIDE_ENGINE <= share_mb(p) + 0.01
        assert p in learners or p.takes_turns == bool(learners and p.limits)


@pytest.mark.parametrize("sizes", LAYOUTS)
@pytest.mark.parametrize("chunk", [0, 8])
@pytest.mark.parametrize("config", [UNSLOTH, PEFT, UNKNOWN], ids=["unsloth", "peft", "unknown"])
def test_every_placement_keeps_the_rules(sizes, chunk, config):
    resources = cards(*sizes)
    for learners in (1, 2, 4):
        for actors in (0, 1, 2, 3, 5, 8, 16):
            more = {"learner_chunk_size": chunk}
            if learners + bool(actors) > len(sizes) and (learners > 1 or len(sizes) > 1):
                with pytest.raises(UserError, match=f"number_of_learners {learners}: .* lower"):
                    placed(resources, actors, learners, config, **more)
            else:
                check(placed(resources, actors, learners, config, **more), resources.gpus)


# Ray


@pytest.mark.real
@pytest.mark.slow
def test_ray_leaves_every_process_on_its_card(monkeypatch, tmp_path):
    import ray

    names = ["7", "GPU-abc", "3", "1", "0"]
    monkeypatch.setenv(variables.VISIBLE, ",".join(names))
    resources = cards(12, 24, 24, 24, 24)
    machine = Machine(1, 64_000, gpus=resources.gpus)
    placement = placed(resources, actors=5, learners=3)
    assert by_card(placement) == [
        ["learner-2"], ["actor-0", "actor-1"], ["actor-2", "actor-3", "actor-4"],
        ["learner-0"], ["learner-1"],
    ]  # fmt: skip
    with own_token():
        joining.ensure_token(os.environ)
        ray.init(address="local", num_cpus=1, num_gpus=5, include_dashboard=False,
                 log_to_driver=False)  # fmt: skip
        seen = []
        for plan in placement.processes:
            environment = process_environment(machine, tmp_path, plan)
            task = ray.remote(num_cpus=0, runtime_env={"env_vars": environment})
            seen.append(task(lambda: os.environ["CUDA_VISIBLE_DEVICES"]).remote())
        assert ray.get(seen, timeout=100) == [names[plan.card] for plan in placement.processes]
        ray.shutdown()
