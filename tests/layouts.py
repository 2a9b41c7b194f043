"""Machines with made-up cards, and what starts on each of them, in order."""

from dataclasses import replace

from unslothrl.config.options import Config
from unslothrl.planning.place import place
from unslothrl.planning.placement import Placement, Resources
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Gpu, Machine
from unslothrl.weights.shapes import Shape

GB = 1024
NAMES = {8: "RTX 4060", 12: "RTX 3060", 16: "RTX 4080", 24: "RTX 4090", 40: "A100-SXM4-40GB",
         48: "L40S", 80: "H100 80GB HBM3", 141: "H200"}  # fmt: skip
SEVEN = {"model": "unsloth/Qwen2.5-7B-Instruct-bnb-4bit"}
ONE_ACTOR = {**SEVEN, "number_of_actors": "1"}
QUIET = {**ONE_ACTOR, "learner_chunk_size": "0"}

LAYOUTS: dict[str, tuple[tuple[Gpu, ...], dict[str, str]]] = {}  # name -> (cards, flags)


def card(gb: int, used_mb: int = 0, index: int = 0) -> Gpu:
    """A card of which others use so many MB."""
    return Gpu(f"NVIDIA {NAMES[gb]}", gb * GB, gb * GB - used_mb, (8, 9), f"GPU-{index}")


def add(name: str, *found: Gpu, **flags: str) -> None:
    """Cards that are alike still have an id each."""
    LAYOUTS[name] = tuple(replace(one, uuid=f"GPU-{i}") for i, one in enumerate(found)), flags


for size in (8, 12, 16, 24, 40, 80):
    add(f"1x{size}", card(size))
    add(f"1x{size}, a desktop", card(size, used_mb=900))
    add(f"2x{size}", card(size), card(size))
add("1x8, half of it used", card(8, used_mb=4 * GB))
for size in (24, 80):
    add(f"1x{size}, 7B with an actor", card(size), **ONE_ACTOR)
for size in (16, 24, 80):
    add(f"1x{size}, 7B with an actor that draws all", card(size), **QUIET)
    add(f"1x{size}, a desktop and an actor", card(size, used_mb=900), **QUIET)
add("1x80, two actors", card(80), **{**SEVEN, "number_of_actors": "2"})
add("2x24, two actors", card(24), card(24), **{**SEVEN, "number_of_actors": "2"})
add("2x80, seven actors", card(80), card(80), **{**SEVEN, "number_of_actors": "7"})
add("4x24", *[card(24)] * 4, number_of_actors="3")
add("8x80", *[card(80)] * 8, number_of_actors="7")
add(
    "8x80, ten actors, two learners", *[card(80)] * 8, number_of_actors="10", number_of_learners="2"
)
add("8 and 24", card(8), card(24))
add("80 and 16, a desktop", card(80), card(16, used_mb=900))
add("24, 12 and 80", card(24), card(12), card(80), number_of_actors="2")
add("2x24, one process", card(24), card(24), cluster="local")
limited = Gpu("NVIDIA H200", 16 * GB, 16 * GB, (9, 0), whole_mb=143_771)
add("16 of 141", limited)
add("16 of 141, an actor", limited, **QUIET)
add("3 x 16 of 141", *[limited] * 3, number_of_actors="2")
add("1x24, no fit", card(24), **QUIET, fit="off", max_num_seqs="16", train_batch_size="1")
add("1x24, peft", card(24), **QUIET, backend="peft")


def machine_of(found: tuple[Gpu, ...]) -> Machine:
    packages = frozenset({"vllm", "unsloth", "ray"})
    return Machine(16, 256_000, 64_000, 500_000, found, packages, online=True)


def resolved(name: str) -> tuple[Config, Machine]:
    gpus, flags = LAYOUTS[name]
    machine = machine_of(gpus)
    return resolve(flags, machine).config, machine


def placed(config: Config, machine: Machine) -> Placement:
    return place(config, Resources.of_machine(config, machine))


def sizes_of(shape: Shape) -> dict[str, int | bool]:
    """As a config.json has them."""
    return {
        "vocab_size": shape.vocabulary, "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head, "tie_word_embeddings": shape.tied,
        "max_position_embeddings": shape.context,
    }  # fmt: skip
