"""An optimiser's state survives a checkpoint exactly: bitsandbytes' 8-bit Adam and torch's."""

import bitsandbytes.optim
import pytest
import safetensors.torch
import torch
from few_cases import few
from test_backend import LRS, learner_of
from test_learner import batch, measured

from unslothrl.backends import peft
from unslothrl.checkpoints import learner_state

SHAPES = [(64, 128), (65, 65), (3, 5), (7,)]  # over 4,096 elements, and not full blocks; under it
KINDS = {
    "AdamW": torch.optim.AdamW,
    "AdamW8bit": bitsandbytes.optim.AdamW8bit,
    "PagedAdamW8bit": bitsandbytes.optim.PagedAdamW8bit,
    "Adam32": bitsandbytes.optim.AdamW,
    "SGD": lambda parameters, **options: torch.optim.SGD(parameters, momentum=0.9, **options),
}
pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU"),
]


def made(kind: str, seed: int):
    """-> (parameters, an optimiser of that kind over them); the last one never has a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [*SHAPES, (100, 100)]
    parameters = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
    return parameters, KINDS[kind](parameters, lr=1e-2, weight_decay=0.1)


def train(parameters, optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters[:-1]:
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 10.0**-step
        optimizer.step()


def trained(kind: str, steps: int):
    """-> (parameters, optimiser, what is saved of them after so many steps)."""
    parameters, optimizer = made(kind, 0)
    train(parameters, optimizer, range(steps))
    return parameters, optimizer, saved(parameters, optimizer)


def saved(parameters, optimizer) -> bytes:
    values = {f"parameter/{i}": parameter for i, parameter in enumerate(parameters)}
    state = learner_state.leaves(optimizer)
    return learner_state.pack({**values, **{f"state/{name}": v for name, v in state.items()}})


def load(parameters, optimizer, data: bytes) -> None:
    values = learner_state.unpack(data)
    state = {n.removeprefix("state/"): v for n, v in values.items() if n.startswith("state/")}
    learner_state.restore(optimizer, state)
    with torch.no_grad():
        for i, parameter in enumerate(parameters):
            parameter.copy_(values[f"parameter/{i}"])


@pytest.mark.parametrize("kind", list(KINDS))
def test_training_goes_on_to_the_byte(kind):
    one, other = made(kind, 0), made(kind, 1)
    train(*one, range(3))
    data = saved(*one)
    train(*other, range(5, 6))  # what is there already is replaced
    load(*other, data)
    assert saved(*other) == data
    before = [parameter.detach().clone() for parameter in one[0]]
    for optimised in (one, other):
        train(*optimised, range(3, 6))
    assert saved(*other) == saved(*one)
    assert [torch.equal(*pair) for pair in zip(before, one[0], strict=True)] == [False] * 4 + [True]


@pytest.mark.parametrize("kind", ["AdamW8bit", "PagedAdamW8bit"])
def test_values_go_into_the_buffers_that_the_optimiser_built(kind):
    parameters, optimizer, data = trained(kind, 3)
    train(parameters, optimizer, range(3, 4))
    first = optimizer.state[parameters[0]]
    buffers = dict(first)
    load(parameters, optimizer, data)
    assert first is optimizer.state[parameters[0]]
    assert {name for name, value in first.items() if value is not buffers[name]} == {"step"}
    assert type(first["step"]) is int and first["step"] == 3
    assert first["state1"].dtype == torch.uint8  # 8,192 elements
    assert optimizer.state[parameters[2]]["state1"].dtype == torch.float32  # 15 elements
    assert parameters[4] not in optimizer.state  # it never had a gradient


def test_the_buffers_of_a_fresh_optimiser_are_its_own():
    """`get_state_buffer` is what pages them on a card."""
    *_, data = trained("PagedAdamW8bit", 3)
    fresh, other = made("PagedAdamW8bit", 1)
    build, built = other.get_state_buffer, []
    other.get_state_buffer = lambda *a, **k: built.append(build(*a, **k)) or built[-1]
    load(fresh, other, data)
    held = [value for state in other.state.values() for value in state.values()]
    assert len(built) == 2 * len(SHAPES)
    assert all(any(value is buffer for value in held) for buffer in built)


@pytest.mark.parametrize(
    ("kind", "other"), [("AdamW", "AdamW8bit"), ("AdamW8bit", "AdamW"), ("Adam32", "AdamW8bit")]
)
def test_another_optimisers_state_is_refused(kind, other):
    *_, data = trained(kind, 1)
    with pytest.raises(ValueError, match="resume on a machine of the kind"):
        load(*made(other, 0), data)


@pytest.mark.parametrize("kind", few([None, "PagedAdamW8bit", "AdamW8bit"], 2))
def test_a_learner_with_a_critic_goes_on_exactly(kind, bases):
    """With the backend's own optimiser, and with those that cards have."""

    def learner(seed, objective="ppo"):
        options = {"rank": 64, "alpha": 64, "dropout": 0.0, "dtype": torch.bfloat16}
        backend = peft.load(bases["plain"], seed=seed, **options)
        if kind is not None:
            backend.optimizer = lambda parameters, lr, weight_decay: KINDS[kind](
                parameters, lr=lr, weight_decay=weight_decay
            )
        return learner_of(backend, bases["plain"], objective=objective)

    def train(one, steps):
        for _ in range(steps):
            one.forward_backward(batch(measured(one)))
            one.step(LRS)

    one, other = learner(0), learner(9)
    train(one, 2)
    data = one.save_state()
    if kind is not None:  # the value head is small
        tensors = safetensors.torch.load(data).items()
        dtypes = {tensor.dtype for name, tensor in tensors if name.endswith("/state1")}
        assert dtypes == {torch.uint8, torch.float32}
    train(one, 3)
    other.load_state(data)
    assert other.save_state() == data
    train(other, 3)
    assert other.save_state() == one.save_state()
    assert other.publish(5) == one.publish(5)
    with pytest.raises(ValueError, match="a different LoRA"):
        learner(0, "grpo").load_state(data)
