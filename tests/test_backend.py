"""The PEFT backend: exact gradients whatever happened before, whatever the micro-batches."""

import json
import random
import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from few_cases import few

from unslothrl.actors.actor import Actor
from unslothrl.algorithms import objectives
from unslothrl.backends import packing, peft
from unslothrl.backends.lora import lora_precision
from unslothrl.config.options import Config
from unslothrl.engines.base import generate
from unslothrl.engines.transformers import TransformersEngine
from unslothrl.learners.learner import Learner
from unslothrl.records import LORA_TARGETS, Batch, Request, Sample, Sampling
from unslothrl.weights.adapter import write_adapter

pytestmark = pytest.mark.real

LENGTHS = [(5, 9), (3, 1), (7, 4), (4, 12), (6, 6), (3, 3), (9, 2), (5, 7)]  # prompt, completion


def samples(seed: int = 0) -> tuple[Sample, ...]:
    draw = random.Random(seed)
    return tuple(
        Sample(
            tuple(draw.choices(range(3, 250), k=prompt)),
            tuple(draw.choices(range(3, 250), k=completion)),
            (-1.0,) * completion,
            np.full(completion, draw.uniform(-2, 2), np.float32),
            0,
        )
        for prompt, completion in LENGTHS
    )


def sample_of(tokens: int) -> Sample:
    """A completion of so many tokens."""
    ids = tuple(range(100, 100 + tokens))
    return Sample((1, 2), ids, (-1.0,) * tokens, np.ones(tokens, np.float32), 0)


LRS = {"lora": 1e-3, "critic": 1e-3}


def learner_of(backend, base, micro_batch: int = 3, objective: str = "grpo") -> Learner:
    engine = TransformersEngine(backend, base, max_num_seqs=8, has_own_base=False)
    options = {"max_prompt_tokens": 4, "max_new_tokens": 12, "value_clip": 0.0}
    config = replace(Config(), train_batch_size=micro_batch, **options)
    return Learner(backend, objectives.load(objective), Actor("learner-0", engine, None), config)


def make_trained(backend) -> None:
    """Gives a policy and a critic that are new weights that are not zero."""
    torch.manual_seed(1)
    for kind in (backend.parameters(), backend.critic_parameters()):
        for name, parameter in kind.items():
            if "lora_B" in name or "value_head" in name:
                torch.nn.init.normal_(parameter, std=0.05)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    learner.forward_backward(Batch(samples(), len(LENGTHS), 44))
    return {name: p.grad.clone() for name, p in learner.backend.parameters().items()}


def check_close(found: dict, expected: dict) -> None:
    for name, gradient in expected.items():
        limit = 1e-5 * max(1.0, gradient.abs().max())
        assert (found[name] - gradient).abs().max() <= limit, name


@pytest.mark.parametrize("kind", few(["biases", "plain"]))
def test_gradients_do_not_depend_on_what_ran_before(kind, bases, make_backend):
    backend = make_backend(bases[kind])
    learner = learner_of(backend, bases[kind])
    before = gradients(learner)
    for sampling in (Sampling(1.0, 1.0, 0, 12), Sampling(0.6, 0.95, 0, 12)):  # and an evaluation
        prompts = [sample.prompt_ids for sample in samples()]
        requests = [Request(str(i), ids, i, sampling) for i, ids in enumerate(prompts)]
        generate(learner.actor.engine, requests)
    with torch.no_grad(), backend.reference():
        backend.token_logprobs(samples(), 1.0)
    after = gradients(learner)
    assert before.keys() == after.keys() and before
    for name in before:
        assert torch.equal(before[name], after[name]), name
        assert before[name].abs().max() > 0, name


@pytest.mark.parametrize("kind", few(["biases", "plain"]))
def test_micro_batches_do_not_change_the_gradient(kind, bases, make_backend):
    backend = make_backend(bases[kind], dtype="float32")
    found = {size: gradients(learner_of(backend, bases[kind], size)) for size in (1, 3, 8)}
    check_close(found[1], found[8])
    check_close(found[3], found[8])


@pytest.mark.parametrize("kind", few(["biases", "plain"]))
def test_packed_is_padded(kind, bases, make_backend):
    """Values and gradients, of the critic too; and a sequence's do not hang on its neighbours."""
    found = {}
    for is_packed in (True, False):
        backend = make_backend(bases[kind], dtype="float32", packs=is_packed)
        assert (backend.pack_inputs is not None) is is_packed
        with torch.no_grad():
            values = torch.stack(backend.token_logprobs(samples(), 1.2))
            alone = [torch.stack(backend.token_logprobs([one], 1.2)) for one in samples()]
        assert torch.allclose(values, torch.cat(alone, dim=1), atol=1e-5)
        found[is_packed] = (values, gradients(learner_of(backend, bases[kind], 3)))
    assert torch.allclose(found[True][0], found[False][0], atol=1e-5)
    check_close(found[True][1], found[False][1])


@pytest.mark.parametrize("kind", few(["biases", "plain"]))
def test_a_prompt_stands_in_a_pack_once(kind, bases, make_backend):
    """Values and gradients are those of every completion with a prompt of its own."""
    group = [
        replace(sample_of(count), prompt_ids=tuple(range(20, 20 + 6 * prompt)))
        for prompt, count in [(1, 5), (2, 9), (1, 7), (1, 1), (2, 3)]
    ]
    backend = make_backend(bases[kind], dtype="float32")
    pack = packing.packed(group, torch.device("cpu"))
    real = 6 + 5 + 7 + 1 + 12 + 9 + 3  # prompt 1 and its completions, prompt 2 and its
    assert pack.ids.shape == (1, packing.FILL)
    assert pack.ids[0, real:].eq(0).all()
    assert pack.positions[0, 11:19].tolist() == [6, 7, 8, 9, 10, 11, 12, 6]
    assert pack.targets.tolist() == [token for one in group for token in one.completion_ids]
    assert pack.rows[5:7].tolist() == [19 + 11, 31]  # from prompt 2's last token on
    found = []
    for parts in ([group], [[one] for one in group]):
        backend.model.zero_grad()
        values = torch.cat([backend.token_logprobs(part, 1.1)[0] for part in parts])
        values.square().sum().backward()
        found.append((values.detach(), {n: p.grad for n, p in backend.parameters().items()}))
    (together, gradients_together), (alone, gradients_alone) = found
    assert torch.allclose(together, alone, atol=1e-5)
    check_close(gradients_together, gradients_alone)


def sized(*lengths: int, prompt: int = 2) -> list[Sample]:
    """Samples of so many tokens, each with another prompt."""
    return [
        replace(sample_of(length - prompt), prompt_ids=(1,) * (prompt - 1) + (number,))
        for number, length in enumerate(lengths)
    ]


def test_packs_hold_what_fits_and_are_alike():
    found = packing.packs(sized(5, 5, 6, 7, 8, 9, 30), 20)
    assert found == [[0, 1, 2], [3, 4], [5], [6]]  # 16, 15, 9 and one that is too long
    assert packing.packs(sized(5, 5, 5, 5), 15) == [[0, 1], [2, 3]]  # not 15 and 5
    assert packing.packs([], 10) == []


def test_packs_count_a_prompt_once():
    one, two = (tuple([i] * 10) for i in (1, 2))
    group = [replace(sample_of(3), prompt_ids=prompt) for prompt in (one, two, one, two)]
    assert packing.packs(group, 16) == [[0, 2], [1, 3]]
    assert packing.packs(group, 15) == [[0], [2], [1], [3]]  # 13 + 3 are too many
    assert packing.packs(group, 26, share=False) == [[0, 1], [2, 3]]


def test_models_whose_attention_is_not_plain_are_padded():
    """By their classes and settings alone, without weights."""

    def built(kind: str, settings: str | None = None, **values):
        config = getattr(transformers, settings or f"{kind}Config")(num_hidden_layers=2, **values)
        with torch.device("meta"):
            return getattr(transformers, f"{kind}ForCausalLM")(config)

    assert packing.can_pack(built("Llama"))
    assert packing.can_pack(built("Qwen2", sliding_window=4096, use_sliding_window=False))
    for odd in (
        built("Mistral", sliding_window=4096),
        built("Gemma2", attn_logit_softcapping=50.0, sliding_window=None),
        built("Llama", attn_implementation="eager"),
        built("Lfm2", layer_types=["conv", "full_attention"]),
        built("Qwen3_5", "Qwen3_5TextConfig", layer_types=["linear_attention", "full_attention"]),
        built("FalconH1"),  # no layer_types: attention and Mamba's state side by side
        built("Gemma3", "Gemma3TextConfig", layer_types=["sliding_attention", "full_attention"]),
    ):
        assert not packing.can_pack(odd), odd.config.model_type


def test_logprobs_are_those_of_the_unpadded_sequence_at_the_temperature(bases, make_backend):
    backend = make_backend(bases["biases"], dtype="float32")
    expected = [], []
    with torch.no_grad():
        found = backend.token_logprobs(samples(), temperature=1.7)
        for sample in samples():
            ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
            logits = backend.model(input_ids=ids).logits[0].float() / 1.7
            rows = logits.log_softmax(-1)[len(sample.prompt_ids) - 1 : -1]
            expected[0].append(rows.gather(1, ids[0, -len(rows) :, None])[:, 0])
            expected[1].append(-(rows.exp() * rows).sum(-1))
    for values, by_hand in zip(found, expected, strict=True):
        assert torch.allclose(values, torch.cat(by_hand), rtol=0, atol=1e-4)


def test_reference_is_the_base_and_gradients_reach_every_target(bases, make_backend):
    backend = make_backend(bases["plain"])
    fresh = make_backend(bases["plain"], trained=False)  # B is zero: the base itself
    with torch.no_grad():
        with backend.reference():
            reference, _ = backend.token_logprobs(samples(), 1.0)
        base, _ = fresh.token_logprobs(samples(), 1.0)
        policy, _ = backend.token_logprobs(samples(), 1.0)
    assert torch.equal(reference, base)
    assert not torch.equal(policy, base)
    assert len(backend.parameters()) == 2 * len(LORA_TARGETS) * 2  # layers x targets x (A, B)


def test_a_starting_adapter_is_trained_on_and_is_the_reference(bases, make_backend, tmp_path):
    first = make_backend(bases["plain"], seed=5)
    folder = write_adapter(first.publish(7), tmp_path)
    assert folder.name == "v000007"
    second = make_backend(bases["plain"], start=folder, trained=False)
    with torch.no_grad():
        policy, _ = second.token_logprobs(samples(), 1.0)
        for parameter in second.parameters().values():
            parameter.mul_(0.5)
        moved, _ = second.token_logprobs(samples(), 1.0)
        with second.reference():
            reference, _ = second.token_logprobs(samples(), 1.0)
        again, _ = second.token_logprobs(samples(), 1.0)
    assert torch.equal(reference, policy)
    assert torch.equal(again, moved) and not torch.equal(moved, policy)
    assert all(parameter.requires_grad for parameter in second.parameters().values())
    assert second.publish(1).weights != first.publish(1).weights


def test_what_is_measured_has_no_dropout(bases, make_backend):
    """Twice the same, and as without it; only what has a gradient draws masks."""
    found = []
    for dropout in (0.0, 0.5):
        backend = make_backend(bases["plain"], dtype="float32", dropout=dropout)
        with torch.no_grad():
            found += [backend.token_logprobs(samples(), 1.0)[0] for _ in range(2)]
        trained = [backend.token_logprobs(samples(), 1.0)[0] for _ in range(2)]
        assert torch.equal(*trained) is (dropout == 0)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("kind", few(["biases", "plain"]))
def test_the_decoder_is_in_eval_mode_wherever_gradients_are_off(kind, bases, make_backend):
    """There Unsloth's checkpointing would keep a host buffer for each forward."""
    backend = make_backend(bases[kind])
    backend.add_critic(seed=0)
    decoder = backend.model.get_base_model().model
    before = [module.training for module in backend.model.modules()]
    seen = []
    for module in decoder.layers:
        module.register_forward_pre_hook(lambda module, inputs: seen.append(module.training))

    def forward():
        seen.clear()
        backend.token_logprobs(samples()[:2], 1.0)
        with backend.reference():
            backend.token_logprobs(samples()[:2], 1.0)
        with backend.critic():
            backend.token_values(samples()[:2])
        assert [module.training for module in backend.model.modules()] == before
        return set(seen)

    assert forward() == {True}
    with torch.no_grad():
        assert forward() == {False}
        with backend.generating():
            backend.token_logprobs(samples()[:2], 1.0)
            assert not decoder.training  # left as it was
        with pytest.raises(IndexError):
            backend.hidden_states(torch.tensor([[10**6]]))
    assert forward() == {True}


@pytest.mark.parametrize("kind", few(["biases", "plain"]))
def test_under_autocast_the_lora_computes_in_the_bases_dtype(
    kind, bases, make_backend, monkeypatch
):
    """As on a card, with a CPU's autocast: PEFT's 4-bit layers then cast nothing to float32."""

    def run():
        """-> (dtypes of the LoRA's outputs, large float32 tensors kept, values, gradients)."""
        backend.model.zero_grad()
        dtypes.clear()
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logprobs = backend.token_logprobs(samples(), 1.2)[0]
        logprobs.sum().backward()
        gradients = {name: p.grad for name, p in backend.parameters().items()}
        return set(dtypes), sum(kept), logprobs.detach(), gradients

    def keep(tensor):
        kept.append(tensor.dtype == torch.float32 and tensor.numel() >= hidden)
        return tensor

    backend = make_backend(bases[kind])
    dtypes, kept = set(), []
    hidden = sum(len(s.prompt_ids) + s.length for s in samples()) * 128
    for name, module in backend.model.named_modules():
        if name.endswith((".lora_A.default", ".lora_B.default")):
            module.register_forward_hook(lambda m, inputs, output: dtypes.add(output.dtype))
    plain = run()
    enabled = torch.is_autocast_enabled
    with monkeypatch.context() as patch:
        # PEFT asks without a device, and means a card.
        patch.setattr(torch, "is_autocast_enabled", lambda *on: enabled(*on) if on else True)
        patch.setattr(
            "unslothrl.backends.lora.lora_precision",
            lambda *_: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
        )
        half = run()
    assert plain[0] == {torch.float32} and half[0] == {torch.bfloat16}
    assert half[1] < plain[1]
    assert torch.allclose(half[2], plain[2], atol=0.05)
    for name, expected in plain[3].items():
        assert half[3][name].dtype == torch.float32
        assert (half[3][name] - expected).norm() < 0.1 * expected.norm(), name


def test_only_a_card_in_bfloat16_has_autocast():
    for device, dtype in (("cpu", "bfloat16"), ("cuda", "float16"), ("cuda", "float32")):
        assert isinstance(lora_precision(device, getattr(torch, dtype)), nullcontext)
    with pytest.warns(UserWarning, match="CUDA is not available"):
        found = lora_precision("cuda", torch.bfloat16)
    assert (found.device, found.fast_dtype) == ("cuda", torch.bfloat16)


def test_a_bases_own_dropout_is_not_the_policys(bases, tmp_path):
    base = shutil.copytree(bases["plain"], tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    ids = torch.arange(8)[None]
    model = peft.load_base(transformers.AutoModelForCausalLM, base, torch.float32)
    assert torch.equal(model.train()(ids).logits, model.eval()(ids).logits)
