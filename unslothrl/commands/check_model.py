"""`unslothrl check-model`: what goes wrong with a model without a word, tried before a run.

The checks have the record of those of a run (`tracking.proof`). On a CPU they compute in float32,
where packed and padded, one micro-batch and several differ by rounding alone.
"""

import importlib.util
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bitsandbytes
import numpy as np
import safetensors
import torch
import transformers

from unslothrl.backends import peft
from unslothrl.backends.lora import LoraBackend
from unslothrl.checkpoints import learner_state
from unslothrl.commands.adapters import half_here
from unslothrl.dialogue.calls import FORMS, NAME, PROBE_TOOL
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.engines import canary
from unslothrl.engines.base import Engine, generate
from unslothrl.errors import AdapterMismatch
from unslothrl.export import merging
from unslothrl.planning.footprint import CHECK_ONLY, EngineMemory
from unslothrl.records import Request, Sample, Sampling
from unslothrl.text import for_terminal
from unslothrl.tracking.proof import LEAST_CHANGED, Check
from unslothrl.weights import base_model, base_parts, decoder
from unslothrl.weights.adapter import write_adapter
from unslothrl.weights.published import PackedWeights, Published

RANK, SEED = 8, 0
PROMPTS, LENGTHS = (7, 19, 40), (5, 24, 1, 60, 33, 12)  # tokens of prompts and completions
DRAWN, NEW_TOKENS, QUARTERS = 8, 64, 4  # completions of the engine, and parts of their length
LEAST_SHARE = 0.99  # of linear weights with a LoRA, of 4-bit bytes that are compared
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.05}  # nats; of a gradient too
LARGEST_4_BIT = 0.2  # of a weight matrix's norm, by which NF4 may change it
NUDGE, SLOPE = 0.02, 0.05  # nats; of the gradient
TEMPERATURE, LARGEST_GAP = 0.8, 0.05  # nats per token
OF_A_COPY = {"architectures", "dtype", "quantization_config", "transformers_version",
             "_name_or_path", "model_type", "use_cache", *peft.DROPOUTS}  # fmt: skip
GENERATED = 1 << 10  # MB of keys and values


def check_model(model: str, engine: str = "auto", as_json: bool = False) -> int:
    """Prints the checks. -> the exit code: 1 where one has failed. UserError for a model that a run
    refuses."""
    found = []
    source = base_model.find(model)
    for check in examine(base_model.prepare(model), engine, source):
        found.append(check)
        if not as_json:
            print(for_terminal(check.line), flush=True)
    if as_json:
        print(json.dumps([check._asdict() for check in found]))
    return int(any(check.passed is False for check in found))


def examine(base: Path, engine: str, source: Path) -> Iterator[Check]:
    """Every check in turn, of a 4-bit checkpoint, and of what it was made from."""
    tokenizer = base_model.load_tokenizer(base)
    yield stops(base, tokenizer)
    yield tool_calls(TemplateDialogue(tokenizer))
    yield compared_bytes(base)
    dtype = half_here() if torch.cuda.is_available() else torch.float32
    options: dict[str, Any] = {"dtype": dtype, "rank": RANK, "alpha": 2 * RANK, "dropout": 0.0}
    backend = peft.load(base, **options, seed=SEED)
    give_effect(backend)
    yield copied(source, backend)
    yield covered(backend)
    samples = made_up()
    yield packs(backend, samples)
    yield from gradients(backend, samples)
    if dtype == torch.float32:
        yield slopes(backend, samples)
    yield resumed(backend, samples)
    with tempfile.TemporaryDirectory(prefix="unslothrl-check-") as folder:
        yield exported(base, backend, Path(folder), samples)
    yield from of_engine(engine_of(base, engine), backend)  # last: vLLM changes some classes


def stops(base: Path, tokenizer: Any) -> Check:
    """What ends an answer in the template ends a completion."""
    ids = base_model.stop_token_ids(base)
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": NAME}]
    end = tokenizer.apply_chat_template(turns, tokenize=False).rpartition(NAME)[2]
    written = tokenizer(end, add_special_tokens=False)["input_ids"]
    ends = [tokenizer.decode(id) for id in ids if id in written]
    said = f"{', '.join(map(str, ids))}, of which {ends or 'none'} ends an answer in the template"
    return Check("stop tokens", bool(ends), said)


def tool_calls(dialogue: TemplateDialogue) -> Check:
    """The form of the template's calls, which a run reads, or has them in Hermes' form instead."""
    for name, form in FORMS.items():
        if form is dialogue.native:
            return Check("tool calls", None, f"{name}'s form")
    knows = NAME in dialogue.tried([{"role": "user", "content": "-"}], [PROBE_TOOL])
    why = "has one that is not read" if knows else "has none"
    return Check("tool calls", None, f"Hermes' form: its template {why}")


def compared_bytes(base: Path) -> Check:
    """The share of the 4-bit bytes that learner and engines hash, to compare their bases."""
    whole = PackedWeights(base)
    sizes = {name: len(whole.tensor(name)) for name in whole.files}
    hashed = sum(size for name, size in sizes.items() if base_model.OF_LINEAR.search(name))
    share = hashed / max(1, sum(sizes.values()))
    said = f"{100 * share:.1f}% of {sum(sizes.values()) / 2**20:.1f} MB in 4 bits"
    return Check("base compared between processes", share >= LEAST_SHARE, said)


def give_effect(backend: LoraBackend) -> None:
    """Random values for B, which begins at 0 and would hide the gradient of A."""
    draw = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in backend.parameters().items():
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=draw))


def copied(source: Path, backend: LoraBackend) -> Check:
    """The 4-bit copy's settings and weights against those of the checkpoint, as far as they have
    its names; rounding to NF4 changes a weight by a tenth."""
    name, model = "4-bit copy", backend.model.get_base_model()
    theirs = transformers.AutoConfig.from_pretrained(source).get_text_config().to_dict()
    if base_model.read_config(source).get("quantization_config"):
        return Check(name, None, "the checkpoint is itself in 4 bits")
    own, modules = model.config.to_dict(), dict(model.named_modules())
    other = [key for key in theirs.keys() - OF_A_COPY if own.get(key) != theirs[key]]
    off, worst, count = 0.0, "", 0
    for tensor_name, tensor in checkpoint_tensors(source):
        path, _, kind = decoder.name_in_text(tensor_name).rpartition(".")
        module: Any = modules.get(path)
        module = getattr(module, "base_layer", module)
        if getattr(module, kind, None) is None:
            continue  # of the images' part
        is_packed = isinstance(module, bitsandbytes.nn.Linear4bit) and kind == "weight"
        weight = merging.dequantised(module) if is_packed else getattr(module, kind)
        tensor = tensor.to(weight.device).float()
        share = float((weight.float() - tensor).norm() / tensor.norm().clamp_min(1e-9))
        share /= LARGEST_4_BIT if is_packed else 0.01
        off, worst = max((off, worst), (share if math.isfinite(share) else math.inf, path))
        count += 1
    said = f"{count} tensors, at most {off:.0%} of what rounding may change ({worst})"
    said += "".join(f", another {key}" for key in sorted(other))
    return Check(name, off < 1 and not other if count else None, said)


def checkpoint_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in base_parts.weight_files(folder):
        with safetensors.safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                yield name, tensors.get_tensor(name)


def covered(backend: LoraBackend) -> Check:
    """The share of the decoder's linear weights that carry a LoRA."""
    own = count = everything = 0
    for path, linear in decoder.linears(backend.model.get_base_model()).items():
        if ".lora_" not in path:  # of PEFT's layers there, what they have wrapped
            size, is_own = linear.in_features * linear.out_features, path.endswith(".base_layer")
            own, count, everything = own + size * is_own, count + is_own, everything + size
    share = own / max(1, everything)
    said = f"{100 * share:.1f}% of {everything:,} linear weights, in {count} layers"
    return Check("LoRA", share >= LEAST_SHARE, said)


def made_up() -> list[Sample]:
    """Random tokens: two completions of each prompt, of ragged lengths."""
    draw = np.random.default_rng(SEED)
    tokens = canary.TOKEN_IDS
    prompts = [tuple(map(int, draw.choice(tokens, size))) for size in PROMPTS]
    found = []
    for prompt, size in zip((*prompts, *prompts), LENGTHS, strict=True):
        zero = np.zeros(size, np.float32)
        found.append(Sample(prompt, draw.choice(tokens, size), zero, zero, 0))
    return found


@torch.no_grad()
def packs(backend: LoraBackend, samples: Sequence[Sample]) -> Check:
    """Log-probabilities in one micro-batch against each sequence by itself."""
    together, inputs = backend.token_logprobs(samples, 1.0)[0], backend.pack_inputs
    backend.pack_inputs = None
    padded = backend.token_logprobs(samples, 1.0)[0]
    alone = torch.cat([backend.token_logprobs([sample], 1.0)[0] for sample in samples])
    backend.pack_inputs = inputs
    gaps = torch.cat([together - alone, padded - alone]).abs()
    off, most = float(gaps.mean()), float(gaps.max())
    how = "padded" if inputs is None else "packed and padded"
    said = f"{how}, {off:.2g} nats a token from each sequence alone, at most {most:.2g}"
    limit = CLOSE[backend.dtype]
    return Check("micro-batches", off < limit and most < 10 * limit, said)


def gradients(backend: LoraBackend, samples: Sequence[Sample]) -> Iterator[Check]:
    """Of the sum of all log-probabilities, at once and sequence by sequence."""
    once = gradient(backend, [samples])
    turns = gradient(backend, [[sample] for sample in samples])
    norms = {name: float(each.norm()) for name, each in once.items()}
    apart = math.hypot(*(float((once[name] - turns[name]).norm()) for name in once))
    share = apart / max(math.hypot(*norms.values()), 1e-9)
    said = f"of one micro-batch and of {len(samples)}: {share:.2g} of its norm apart"
    yield Check("gradients", share < CLOSE[backend.dtype], said)
    still = sorted(name for name, norm in norms.items() if not 0 < norm < float("inf"))
    said = ", ".join([f"{len(once) - len(still)} of {len(once)} tensors", *still[:1]])
    yield Check("tensors with a gradient", not still, said)


def gradient(backend: LoraBackend, parts: Sequence[Sequence[Sample]]) -> dict[str, torch.Tensor]:
    backend.model.zero_grad()
    for part in parts:
        backend.token_logprobs(part, 1.0)[0].sum().backward()
    parameters, zero = backend.parameters(), torch.zeros_like
    return {n: zero(p) if p.grad is None else p.grad.clone() for n, p in parameters.items()}


def slopes(backend: LoraBackend, samples: Sequence[Sample]) -> Check:
    """How the sum of all log-probabilities changes along the gradient, for all layers' tensors of
    one name, by its value on both sides; in float32 only."""
    found, parameters = gradient(backend, [samples]), backend.parameters()
    kinds: dict[str, list[str]] = {}
    for name in found:
        kinds.setdefault(".".join(name.split(".")[-4:-2]), []).append(name)
    worst, where = 0.0, ""

    @torch.no_grad()
    def value(names: Sequence[str], scale: float) -> float:
        for name in names:
            parameters[name].add_(found[name], alpha=scale)
        summed = float(backend.token_logprobs(samples, 1.0)[0].double().sum())
        for name in names:
            parameters[name].sub_(found[name], alpha=scale)
        return summed

    for kind, names in kinds.items():
        square = sum(float(found[name].double().square().sum()) for name in names)
        if not square:
            continue  # which another check names
        scale = NUDGE / square  # which changes the sum by `NUDGE`
        slope = (value(names, scale) - value(names, -scale)) / (2 * NUDGE)
        worst, where = max((worst, where), (abs(slope - 1), kind))
    said = f"at most {worst:.2g} of the gradient's from what the log-probabilities do ({where})"
    return Check("slopes", worst < SLOPE, said)


def resumed(backend: LoraBackend, samples: Sequence[Sample]) -> Check:
    """An optimiser step after a state was saved, and again after it was restored. On a GPU the
    backward pass adds up in any order."""
    parameters = backend.parameters()
    optimizer = backend.optimizer(list(parameters.values()), lr=1e-3, weight_decay=0.0)
    trained, optimizers = {"lora": parameters}, {"lora": optimizer}

    def step() -> dict[str, torch.Tensor]:
        gradient(backend, [samples])
        optimizer.step()
        return {name: p.detach().clone() for name, p in parameters.items()}

    step()
    state = learner_state.save(trained, optimizers)
    once = step()
    learner_state.load(trained, optimizers, state)
    off = max(float((each - once[name]).abs().max()) for name, each in step().items())
    limit = 0.0 if backend.device.type == "cpu" else 1e-4
    return Check("resume", off <= limit, f"weights after a step at most {off:.2g} apart")


def of_engine(generating: Engine, backend: LoraBackend) -> Iterator[Check]:
    """What is drawn with is what is trained: the base, the adapter, the log-probabilities."""
    adapter = backend.publish(0)
    name = type(generating).__name__.removesuffix("Engine")
    try:
        same = generating.fingerprint() == backend.fingerprint()
        yield Check("base of the engine", same, f"{name} holds {generating.fingerprint()}")
        try:
            changed = canary.check(generating, Published(adapter).shape())
            generating.load(adapter)
        except AdapterMismatch as error:
            yield Check("adapter in the engine", False, str(error))
            return
        said = f"read back; a random one changes {changed} of {canary.PROMPTS} completions"
        yield Check("adapter in the engine", changed >= LEAST_CHANGED, said)
        yield gaps(backend, generating)
    finally:
        generating.close()


def engine_of(base: Path, name: str) -> Engine:
    """`name`: "auto" is vLLM where it is installed, and computes over a 4-bit base."""
    dtype = half_here()
    can = dtype == torch.bfloat16 and importlib.util.find_spec("vllm") is not None
    if name == "vllm" or (name == "auto" and can):
        from unslothrl.engines import vllm

        context, memory = PROMPTS[-1] + NEW_TOKENS + 8, EngineMemory(GENERATED, CHECK_ONLY)
        return vllm.start(
            base, dtype=dtype, context=context, rank=RANK, max_num_seqs=DRAWN, seed=SEED,
            memory=memory,
        )  # fmt: skip
    from unslothrl.engines.transformers import TransformersEngine

    own = peft.load(base, dtype=dtype, rank=RANK, alpha=2 * RANK, dropout=0.0, seed=SEED)
    return TransformersEngine(own, base, max_num_seqs=DRAWN, has_own_base=True)


def gaps(backend: LoraBackend, generating: Engine) -> Check:
    """|engine - learner| of what the engine has drawn, by quarters of its length; the learner as in
    an update, with gradients."""
    sampling = Sampling(temperature=TEMPERATURE, top_p=1.0, top_k=0, max_new_tokens=NEW_TOKENS)
    prompts = [sample.prompt_ids for sample in made_up()]
    asked = [Request("", prompts[i % len(prompts)], i, sampling) for i in range(DRAWN)]
    drawn = generate(generating, asked)
    samples = [Sample.of(each.prompt_ids, done) for each, done in zip(asked, drawn, strict=True)]
    parts: list[list[float]] = [[] for _ in range(QUARTERS)]
    for sample in samples:
        own = backend.token_logprobs([sample], TEMPERATURE)[0].detach().cpu().numpy()
        for at, gap in enumerate(np.abs(own - sample.sampler_logprobs)):
            parts[at * QUARTERS // NEW_TOKENS].append(float(gap))
    means = [float(np.mean(part)) for part in parts if part]
    said = f"{', '.join(f'{mean:.4f}' for mean in means)} nats per token, by quarters of the length"
    return Check("sampler gap", max(means) < LARGEST_GAP, said)


def exported(base: Path, backend: LoraBackend, folder: Path, samples: Sequence[Sample]) -> Check:
    """The merged model's logits against the adapter's, and how far those are from the base's."""
    adapter = write_adapter(backend.publish(0), folder)
    with_adapter, merged = merging.merged(base, adapter, torch.float32, torch.device("cpu"))
    prompts = [(*each.prompt_ids, *each.completion_ids.tolist()) for each in samples[:3]]
    close = merging.likeness(with_adapter, merged, prompts)
    with with_adapter.disable_adapter():
        effect = merging.likeness(with_adapter, merged, prompts)
    figures = f"{close.mean:.2g} from the adapter's on average, {effect.mean:.2g} from the base's"
    return Check("merged export", close.mean < 0.1 * effect.mean, f"logits {figures}")
