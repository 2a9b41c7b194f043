"""`unslothrl export`: an adapter as others use it: with all it needs, or merged into its base."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from unslothrl import embedded, variables
from unslothrl.commands.adapters import Found, base_of, find
from unslothrl.config.hardware import half_precision
from unslothrl.data import prompts
from unslothrl.embedded import task as arithmetic
from unslothrl.errors import UserError
from unslothrl.files import expanded
from unslothrl.planning.machine import Machine
from unslothrl.tracking.run_folder import SUMMARY
from unslothrl.weights import adapter_check, adapter_use, base_model
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

ADAPTER, MERGED = "adapter", "merged"
FORMS = (ADAPTER, MERGED)
COMPARED = 20  # prompts
CARD = "README.md"


def export(
    adapter: str, to: str, output: str, model: str | None = None, out: TextIO | None = None
) -> None:
    """Writes the adapter, or the merged model, into the folder `output`, whole or not at all, and
    prints how it is used. UserError, RunError."""
    out = out or sys.stdout
    if to not in FORMS:
        raise UserError(f"to must be one of {', '.join(FORMS)}, got {to!r:.40}: set --to {MERGED}")
    target = expanded(output)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"output {output}: it is there already: name a folder that is not")
    found = find(adapter)
    name = base_of(found, model)
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    adapter_check.check(str(found.folder), base_model.find(name, weights=False))
    base = base_model.prepare(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        temporary.chmod(0o755)
        write = write_adapter if to == ADAPTER else write_merged
        said = write(found, name, base, temporary)
        (temporary / CARD).write_text(card(found, name, to))
        for path in temporary.iterdir():
            path.chmod(0o644)
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print("\n".join([*said, f"{to}: {target}", *lines(to, target, name)]), file=out)


def write_adapter(found: Found, name: str, base: Path, folder: Path) -> list[str]:
    """The adapter with its base's name, tokenizer and chat template. -> lines to print"""
    settings = json.loads((found.folder / CONFIG_FILE).read_text())
    settings["base_model_name_or_path"] = name if name != embedded.EMBEDDED else str(base)
    (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n")
    shutil.copyfile(found.folder / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    if (found.folder / adapter_use.USE_FILE).exists():
        shutil.copyfile(found.folder / adapter_use.USE_FILE, folder / adapter_use.USE_FILE)
    copy_tokenizer(found, base, folder)
    return []


def write_merged(found: Found, name: str, base: Path, folder: Path) -> list[str]:
    """The merged model. -> lines to print: how far its logits are from the adapter's."""
    import torch

    from unslothrl.export import merging

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    capability = torch.cuda.get_device_capability() if device.type == "cuda" else None
    dtype = getattr(torch, half_precision(capability))
    with_adapter, model = merging.merged(base, found.folder, dtype, device)
    alike = merging.likeness(with_adapter, model, prompts_of(found, base))
    model.save_pretrained(folder)
    copy_tokenizer(found, base, folder)
    return [
        f"logits of the merged model and of the adapter over its 4-bit base, on {alike.prompts} "
        f"prompts: largest difference {alike.largest:.3g}, mean {alike.mean:.2g}; the same token "
        f"is likeliest at {100 * alike.same_choice:.1f}% of the positions"
    ]


def prompts_of(found: Found, base: Path) -> list[tuple[int, ...]]:
    """The ids of some questions, as the adapter's run put them."""
    tokenizer = base_model.load_tokenizer(base)
    use = adapter_use.read(found.folder)
    if use is not None and use.chat_template is not None:
        tokenizer.chat_template = use.chat_template
    system = use.system_prompt if use is not None else ""
    problems = arithmetic.problems("test", 0)
    texts = [prompts.render(tokenizer, next(problems)["problem"], system) for _ in range(COMPARED)]
    return [tuple(ids) for ids in prompts.tokenise(tokenizer, texts)]


def copy_tokenizer(found: Found, base: Path, folder: Path) -> None:
    """The files of the base's tokenizer, and the chat template that the run used."""
    for path in sorted(base.iterdir()):
        is_tokenizers = path.name.startswith(("tokenizer", "special_tokens", "vocab", "merges"))
        is_template = path.name in ("chat_template.jinja", "added_tokens.json")
        if is_tokenizers or is_template:
            shutil.copyfile(path, folder / path.name)
    use = adapter_use.read(found.folder)
    if use is not None and use.chat_template is not None:
        (folder / "chat_template.jinja").write_text(use.chat_template)


def card(found: Found, name: str, to: str) -> str:
    """A model card of the hub's: what it is, from what, how well it did."""
    head = {"base_model": name, "library_name": "peft" if to == ADAPTER else "transformers"}
    front = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    what = "A LoRA adapter" if to == ADAPTER else "A merged 16-bit model"
    text = (
        f"---\n{front}tags: [reinforcement-learning, lora, unslothrl]\n---\n\n# {found.title}\n\n"
        f"{what}, trained by reinforcement learning over the 4-bit weights of `{name}` with "
        "unslothrl.\n"
    )
    use = adapter_use.read(found.folder)
    if use is not None and use.system_prompt:
        text += f"\nIts system prompt:\n\n```\n{use.system_prompt}\n```\n"
    summary = summary_of(found)
    if summary:
        text += "\n" + "".join(f"- {key}: {value}\n" for key, value in summary.items())
    return text


def summary_of(found: Found) -> dict[str, Any]:
    """What a run's summary says that others may want to know."""
    path = found.run / SUMMARY if found.run is not None else None
    if path is None or not path.exists():
        return {}
    values = json.loads(path.read_text())
    first, best = values.get("first_eval") or {}, values.get("best_eval") or {}
    shown = {"steps": values.get("steps")}
    for key, value in best.items():
        if key.endswith("pass@1") and key in first:
            shown[f"{key} before training"] = f"{first[key]:.3f}"
            shown[f"{key}, best"] = f"{value:.3f}"
    return {key: value for key, value in shown.items() if value is not None}


def lines(to: str, target: Path, name: str) -> list[str]:
    """How others serve it."""
    if to == MERGED:
        return [
            f"vLLM:      vllm serve {target}",
            f"llama.cpp: python convert_hf_to_gguf.py {target} --outfile {target}.gguf",
        ]
    return [
        f"vLLM: vllm serve {name} --enable-lora --lora-modules mine={target}",
        f'PEFT: PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{name}"), '
        f'"{target}")',
    ]
