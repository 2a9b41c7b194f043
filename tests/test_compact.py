"""What crosses a process is the same afterwards, bit for bit, and small."""

import copy
import pickle
import struct
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unslothrl import compact
from unslothrl.errors import AdapterDamaged
from unslothrl.policy_version import Adapter
from unslothrl.types import Batch, Completion, Measured, Sample

FLOATS = st.floats() | st.floats(width=32) | st.just(0.0)
IDS = st.integers(0, 2**17) | st.integers()


def bits(values) -> list[bytes]:
    """NaN and -0.0 included."""
    return [struct.pack("d", value) for value in values]


@st.composite
def completions(draw) -> Completion:
    size = draw(st.integers(0, 40))
    per_token = (IDS, FLOATS, st.booleans(), st.integers(0, 3))
    columns = [tuple(draw(st.lists(e, min_size=size, max_size=size))) for e in per_token]
    reason = draw(st.sampled_from(["stop", "length", "abort"]))
    return Completion(*columns, reason, draw(st.text()), draw(st.text()))


@given(completions(), st.sampled_from([2, 5]))
def test_a_completion_is_the_same_afterwards(completion, protocol):
    there = pickle.loads(pickle.dumps(completion, protocol))
    assert bits(there.logprobs) == bits(completion.logprobs)
    for name in ("token_ids", "sampled", "versions", "finish_reason", "text", "generator"):
        assert getattr(there, name) == getattr(completion, name)
        assert type(getattr(there, name)) is type(getattr(completion, name))
    assert {type(value) for value in there.sampled} <= {bool}
    assert {type(value) for value in (*there.token_ids, *there.versions)} <= {int}
    assert copy.deepcopy(there).token_ids == completion.token_ids
    assert there.policy_version == completion.policy_version


def test_a_completion_that_was_sent_on_unread_is_the_same():
    first = Completion((5, 6), (-0.5, 0.0), (True, False), (3, 4), "stop", "a", "actor-0")
    data = pickle.dumps(first)
    assert pickle.dumps(pickle.loads(data)) == data
    there = pickle.loads(pickle.dumps(pickle.loads(data)))
    assert there == first and hash(there) == hash(first) and repr(there) == repr(first)
    assert replace(there, text="b") == replace(first, text="b")
    with pytest.raises(AttributeError, match="Completion has no attribute 'tokens'"):
        there.tokens  # noqa: B018


@given(st.lists(FLOATS))
def test_floats_keep_their_bits(values):
    code, data = packed = compact.floats_packed(values)
    assert bits(compact.unpacked(packed)) == bits(values)
    assert len(data) == len(values) * {"f": 4, "d": 8}[code]


def test_floats_of_an_engine_in_float32_take_four_bytes_each():
    exact = tuple(np.float32([-0.1, -1e-7, 0.0, -3.25]).tolist())
    assert compact.floats_packed(exact) == ("f", np.float32(exact).tobytes())
    assert compact.floats_packed((-0.1, *exact))[0] == "d"
    assert compact.floats_packed((1e300,))[0] == "d"  # no float32 is that large


def test_whole_numbers_of_any_size():
    assert compact.ints_packed((1, -1)) == ("i", struct.pack("ii", 1, -1))
    assert compact.ints_packed((2**31,)) == ("", (2**31,))
    assert compact.unpacked(compact.ints_packed((2**40, 5))) == (2**40, 5)


def test_runs():
    assert compact.runs((7, 7, 7, 9, 7)) == ((7, 3), (9, 1), (7, 1))
    assert compact.runs((True,) * 1000) == ((True, 1000),)
    assert compact.repeated(compact.runs((7, 7, 9))) == (7, 7, 9)
    assert compact.repeated(compact.runs(())) == ()


def test_a_completion_of_1000_tokens_takes_8_bytes_a_token():
    logprobs = tuple(np.linspace(-3, 0, 1000, dtype=np.float32).tolist())
    drawn = Completion.drawn(tuple(range(150_000, 151_000)), logprobs, "stop", 3)
    assert len(pickle.dumps(drawn)) < 8 * 1000 + 300


def test_a_sample_is_the_same_afterwards_and_shares_its_groups_prompt():
    prompt = tuple(range(1000, 3000))
    ones = np.ones(2, np.float32)
    samples = [
        Sample(prompt, (5, 6), (-0.1, -0.2), ones, 4),
        Sample(prompt, (5, 6, 7), (-0.1, -0.2), ones, 4, Measured(ones), ones, (True, False, True)),
    ]
    data = pickle.dumps(samples)
    assert len(data) < 8000
    there = pickle.loads(data)
    assert there[0].prompt_ids is there[1].prompt_ids
    for before, after in zip(samples, there, strict=True):
        for field in fields(Sample):
            assert repr(getattr(after, field.name)) == repr(getattr(before, field.name))


def test_an_adapters_weights_are_a_buffer_that_is_not_copied():
    weights = np.random.default_rng(0).bytes(100_000)
    adapter = Adapter.of(7, weights, "{}")
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(adapter, 5, buffer_callback=buffers.append)
    assert len(data) < 300 and len(buffers) == 1
    received = bytearray(buffers[0].raw())  # as another process has it
    there = pickle.loads(data, buffers=[received])
    there.verify()
    assert there == adapter and there.weights == weights and there.weights.readonly
    received[-1] ^= 1
    assert there.weights != weights  # it is the buffer itself
    with pytest.raises(AdapterDamaged, match="adapter v7 arrived damaged"):
        there.verify()


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_adapter_goes_in_one_piece_as_well(protocol):
    adapter = Adapter.of(7, b"abc", "{}")
    there = pickle.loads(pickle.dumps(adapter, protocol))
    assert there == adapter == copy.deepcopy(adapter)
    there.verify()
    # Of "abc", from FIPS 180-4 and by the xxHash project's own program (xxhsum -H2).
    assert there.sha256.startswith("ba7816bf8f01cfea")
    assert there.checksum == "06b05ab6733a618578af5f94892f3950"


def test_every_bit_counts():
    weights = bytearray(b"\x00" * 4099)
    checksum = Adapter.of(0, bytes(weights), "{}").checksum
    for place in (0, 1, 2048, 4095, 4098):
        for bit in (1, 128):
            weights[place] ^= bit
            assert Adapter.of(0, bytes(weights), "{}").checksum != checksum
            weights[place] ^= bit


@given(completions())
def test_a_sample_of_a_completion_that_came_packed_is_the_same(completion):
    there = pickle.loads(pickle.dumps(completion))
    ones = [1.0] * sum(completion.sampled)
    for sample in (Sample.of((1, 2), completion), Sample.of((1, 2), there)):
        assert sample.advantages.tolist() == [0.0] * len(ones)
        given_ones = sample.with_advantage(1.0)
        for each in (sample, given_ones, pickle.loads(pickle.dumps(given_ones))):
            assert each.length == len(completion.token_ids)
            assert each.tokens == sum(completion.sampled)
            assert each.prompt_ids == (1, 2) and each.completion_ids == completion.token_ids
            kept = [p for p, s in zip(completion.logprobs, completion.sampled, strict=True) if s]
            assert bits(each.sampler_logprobs) == bits(kept)
            assert each.sampled == (None if all(completion.sampled) else completion.sampled)
            assert each.policy_version == completion.policy_version
            assert each.advantages.dtype == np.float32
        assert given_ones.advantages.tolist() == ones


@given(completions())
def test_tokens_are_counted_by_version(completion):
    drawn = [v for v, s in zip(completion.versions, completion.sampled, strict=True) if s]
    for each in (completion, pickle.loads(pickle.dumps(completion))):
        assert dict(each.version_counts) == {v: drawn.count(v) for v in set(drawn)}
        assert each.policy_version == min(drawn, default=-1)


def test_a_completion_is_not_unpacked_on_its_way_to_the_learner():
    tokens = 5
    completion = pickle.loads(
        pickle.dumps(Completion.drawn((7,) * tokens, (-0.5,) * tokens, "stop", 3))
    )
    sample = Sample.of((1, 2), completion).with_advantage(1.0)
    pickle.dumps(sample)
    for record in (completion, sample):
        unpacked = [name for name in record.COLUMNS if name in slots_that_are_set(record)]
        assert unpacked == []


def slots_that_are_set(record) -> list[str]:
    names = []
    for field in fields(record):
        try:
            object.__getattribute__(record, field.name)
        except AttributeError:
            continue
        names.append(field.name)
    return names


@given(st.lists(completions(), max_size=4))
def test_a_batch_is_the_same_after_its_way_by_columns(drawn):
    """Some samples are masked, some have advantages that differ, some were unpacked."""
    samples = [Sample.of((1, 2), completion).with_advantage(0.5) for completion in drawn]
    for number, sample in enumerate(samples[::2]):
        values = np.arange(sample.tokens, dtype=np.float32) - number
        samples[2 * number] = replace(sample, advantages=values, returns=values)
    batch = Batch(tuple(samples), 4, 99)
    there = pickle.loads(pickle.dumps(batch))
    assert (there.sequences, there.tokens, len(there.samples)) == (4, 99, len(samples))
    for before, after in zip(samples, there.samples, strict=True):
        for field in fields(Sample):
            assert repr(getattr(after, field.name)) == repr(getattr(before, field.name))
    prompts = {id(sample.prompt_ids) for sample in there.samples}
    assert len(prompts) <= 1  # they share it
