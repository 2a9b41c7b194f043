"""What is written reads back as it was: configs, a learner's state in a checkpoint, adapters."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import adapters
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from unslothrl import embedded
from unslothrl.checkpoints import learner_state
from unslothrl.checkpoints.store import Checkpoints, RunState
from unslothrl.commands.eval import read_adapter
from unslothrl.config.options import OPTIONS, Config
from unslothrl.config.toml_files import read_toml, to_toml
from unslothrl.config.values import RUN, choices_of, read_value
from unslothrl.records import LORA_TARGETS
from unslothrl.text import redacted_values
from unslothrl.weights import adapter_check
from unslothrl.weights.adapter import Adapter, write_adapter
from unslothrl.weights.published import Published

ANY = st.text(st.characters(exclude_categories=["Cs"]))
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def values_of(name: str) -> st.SearchStrategy:
    """The valid values of an option, None where it may be unset."""
    limits, kind = OPTIONS[name].metadata, RUN.kind(name)
    one: st.SearchStrategy = TEXT
    if choices := choices_of(name):
        one = st.sampled_from(choices)
    elif kind is bool:
        one = st.booleans()
    elif kind is int:
        one = st.integers(limits["at_least"], limits.get("at_most"))
    elif kind is float:
        least, over = limits.get("at_least", limits.get("over")), "over" in limits
        one = st.floats(least, limits.get("at_most"), exclude_min=over, allow_subnormal=True,
                        allow_nan=False, allow_infinity=False)  # fmt: skip
    one = st.lists(one, max_size=3).map(tuple) if kind is tuple else one
    return st.none() | one if RUN.is_optional(name) else one


CONFIGS = st.fixed_dictionaries({}, optional={name: values_of(name) for name in OPTIONS})


@given(CONFIGS)
def test_a_config_reads_back_as_it_was(values):
    assume(redacted_values(values) == values)  # secrets are hidden
    assert values == {name: read_value(name, values[name], is_flag=False) for name in values}
    config = replace(Config(), **values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_bytes(to_toml(config, ["a fact of\nthe run"]).encode())
        assert replace(Config(), **read_toml(path)) == config


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8,
          torch.int32, torch.int64, torch.bool)  # fmt: skip
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)  # () is a number, (0,) empty
PLAIN = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | ANY | st.floats(
    allow_nan=False, allow_infinity=False
)  # fmt: skip


@st.composite
def tensors(draw) -> torch.Tensor:
    """Of any bits, not-a-number and infinity among them; some are views that are not contiguous."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    count = int(torch.Size(shape).numel())
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=numbers, dtype=torch.uint8).bool()
    size = count * dtype.itemsize
    made = torch.randint(0, 256, (size,), generator=numbers, dtype=torch.uint8)
    made = made.view(dtype).view(shape)
    return made.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else made


def bits(values: dict) -> dict:
    return {
        name: (value.dtype, value.shape, value.contiguous().view(-1).view(torch.uint8).tolist())
        if isinstance(value, torch.Tensor)
        else (type(value), value)
        for name, value in values.items()
    }


NAMES = st.builds("/".join, st.tuples(st.sampled_from(["lora", "critic", "optimizer"]), ANY))


@given(st.dictionaries(NAMES, tensors() | PLAIN, max_size=5), st.integers(0, 10**7))
def test_a_learners_state_comes_back_from_a_checkpoint_bit_by_bit(values, step):
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        checkpoints.write(RunState(step=step), learner_state.pack(values))
        found = checkpoints.newest(pytest.fail)
        assert found.state.step == step
        read = learner_state.unpack(found.learner())
    assert bits(read) == bits(values)


@st.composite
def made_adapters(draw) -> Adapter:
    """Of the embedded base: any rank, targets, dtype and weights."""
    rank = draw(st.sampled_from((1, 2, 3, 4, 7, 8, 16, 64)))
    targets = draw(st.lists(st.sampled_from(LORA_TARGETS), min_size=1, unique=True))
    dtype, size = draw(st.sampled_from((("BF16", 2), ("F16", 2), ("F32", 4))))
    byte = draw(st.integers(0, 0x3B))
    parts = {
        name: (dtype, shape, bytes([byte] * (shape[0] * shape[1] * size)))
        for name, (_, shape, _) in adapters.tensors(rank).items()
        if any(f".{target}." in name for target in targets)
    }
    settings = {**adapters.SETTINGS, "r": rank, "target_modules": targets}
    return Adapter.of(draw(st.integers(0, 10**7)), adapters.packed(parts), json.dumps(settings))


@given(made_adapters())
def test_an_adapter_reads_back_as_it_was(made):
    with tempfile.TemporaryDirectory() as parent:
        folder = write_adapter(made, Path(parent))
        lora = adapter_check.check(str(folder), embedded.BASE)
        read = read_adapter(folder)
    settings = json.loads(made.config)
    assert (lora.rank, set(lora.targets)) == (settings["r"], set(settings["target_modules"]))
    assert (read.version, read.config) == (made.version, made.config)
    assert bytes(read.weights) == bytes(made.weights)
    assert Published(read).shape() == Published(made).shape()
