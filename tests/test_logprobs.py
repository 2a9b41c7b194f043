"""Log-probabilities in parts: the values and gradients of the whole, without its memory."""

from types import SimpleNamespace

import pytest
import torch
from python_process import python

from unslothrl.backends import logprobs
from unslothrl.backends.lora import LoraBackend

pytestmark = pytest.mark.real


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_parts_are_the_whole(tokens, entropy_gradient, monkeypatch):
    torch.manual_seed(0)
    head = logprobs.Head(torch.nn.Linear(8, 50), scale=1.5, cap=2.0)
    states = torch.randn(tokens, 8)
    targets = torch.randint(50, (tokens,))
    upstream = torch.randn(2, tokens)
    found = {}
    for chunk in (1, 50 * 3, 10**9):  # a token, three tokens, everything
        monkeypatch.setitem(logprobs.LOGITS, "cpu", chunk)
        hidden = states.clone().requires_grad_()
        values, entropies = logprobs.token_logprobs(head, hidden, targets, 1.3, entropy_gradient)
        loss = (values * upstream[0] + entropy_gradient * entropies * upstream[1]).sum()
        (gradient,) = torch.autograd.grad(loss, hidden)
        found[chunk] = (values, entropies, gradient)
        with torch.no_grad():
            again = logprobs.token_logprobs(head, hidden, targets, 1.3)
        assert torch.allclose(again[0], values, atol=1e-6)
    whole = (head(states) / 1.3).log_softmax(-1)
    assert torch.allclose(found[1][0], whole.gather(1, targets[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(found[1][1], -(whole.exp() * whole).sum(-1), atol=1e-5)
    for part in (1, 150):
        for ours, expected in zip(found[part], found[10**9], strict=True):
            assert torch.allclose(ours, expected, atol=1e-5)


def test_an_output_layer_sees_few_numbers_of_rows_on_a_cpu_and_gives_the_same():
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 50, bias=False).to(torch.bfloat16).requires_grad_(False)
    rows: set[int] = set()
    layer.register_forward_pre_hook(lambda layer, inputs: rows.add(len(inputs[0])))
    for tokens in range(1, 300):
        hidden = torch.randn(tokens, 16).to(torch.bfloat16).requires_grad_()
        targets = torch.randint(50, (tokens,))
        values, _ = logprobs.token_logprobs(logprobs.Head(layer), hidden, targets, 1.0)
        (gradient,) = torch.autograd.grad(values.sum(), hidden)
        if tokens % 23 == 0:
            plain = torch.nn.functional.linear(hidden, layer.weight)
            expected, _ = logprobs.gather_logprobs(plain, targets, 1.0)
            assert torch.equal(values, expected)
            assert torch.equal(gradient, torch.autograd.grad(expected.sum(), hidden)[0])
    assert rows == {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320}


MEMORY = """
import torch
from unslothrl.backends import logprobs
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10
torch.manual_seed(0)
head = logprobs.Head(torch.nn.Linear(64, 151_936, bias=False).requires_grad_(False))
hidden = torch.randn(1024, 64, requires_grad=True)
targets = torch.randint(151_936, (1024,))
logprobs.token_logprobs(head, hidden[:2], targets[:2], 1.0)[0].sum().backward()
before = peak()
values, _ = logprobs.token_logprobs(head, hidden, targets, 1.0)
values.sum().backward()
print(peak() - before, hidden.grad.abs().sum().item() > 0)
"""


@pytest.mark.slow
def test_a_large_vocabulary_takes_little_memory():
    """1,024 tokens, whose logits take 622 MB; bench/learner.py has 4,096."""
    extra_mb, has_gradient = python("-c", MEMORY).stdout.split()
    assert int(extra_mb) < 300 and has_gradient == "True"


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2", "cohere", "granite"])
def test_logits_are_those_of_the_models_own_forward(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    extra = {"gemma2": {"final_logit_softcapping": 0.05}, "granite": {"logits_scaling": 8.0}}
    config = AutoConfig.for_model(
        kind, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, vocab_size=99, pad_token_id=0, **extra.get(kind, {}),
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    backend = SimpleNamespace(
        model=SimpleNamespace(get_base_model=lambda: model),
        device=torch.device("cpu"),
        dtype=torch.float32,
        split=SimpleNamespace(stage=None),
    )
    ids = torch.randint(1, 99, (1, 5))
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0]
        found = logprobs.Head.of(model)(LoraBackend.hidden_states(backend, ids)[0])
    assert torch.allclose(found, expected, atol=1e-6) and expected.abs().max() > 0


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_logits_are_rounded_nowhere(bias, dtype):
    """What a card computes, with large logits: rounded to bfloat16, 0.06 of 20 would be lost."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 300, bias=bias).to(dtype).requires_grad_(False)
    states = (torch.randn(5, 64) * 30).to(dtype).requires_grad_()
    exact = states.detach().double() @ layer.weight.double().t()
    exact += layer.bias.double() if bias else 0
    found = logprobs.float32_logits(layer, states)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-4
    assert (layer(states) - exact).abs().max() > 1e-2  # the layer's own are rounded
    upstream = torch.randn(5, 300)
    (gradient,) = torch.autograd.grad(found, states, upstream)
    expected = upstream.double() @ layer.weight.double()
    assert gradient.dtype == dtype
    assert (gradient - expected).norm() < 1e-2 * expected.norm()
    assert logprobs.Head(layer)(states).dtype == dtype  # on a CPU nothing changes
