"""`unslothrl export`: an adapter as others use it: with all it needs, merged into its base, or as
GGUF; into a folder, and to the hub."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from unslothrl.commands.adapters import Source, find, half_here, source_of
from unslothrl.data import rendering
from unslothrl.embedded import BASES
from unslothrl.embedded import task as arithmetic
from unslothrl.errors import RunError, UserError
from unslothrl.export import serving
from unslothrl.files import expanded, staged
from unslothrl.rewards import model as judge
from unslothrl.text import for_terminal, one_line
from unslothrl.tracking import card, origin
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.weights import adapter_check, adapter_use, base_model
from unslothrl.weights.adapter import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, with_base
from unslothrl.weights.adapter_use import Use
from unslothrl.weights.base_parts import TEMPLATE_FILE, tokenizer_files

ADAPTER, MERGED, GGUF = "adapter", "merged", "gguf"
DEFAULT_TYPE = "f16"
ROUNDED = 0.97  # share of equal likeliest tokens that rounded weights leave at least
NEARER = 0.9  # times as far from the base as from the adapter, it is the base: rounding is below
COMPARED = 20  # prompts


def export(
    adapter: str,
    to: str,
    output: str | None,
    model: str | None = None,
    gguf_type: str = DEFAULT_TYPE,
    push: str | None = None,
    private: bool = False,
) -> None:
    """Writes the adapter, the merged model or a GGUF file into the folder `output`, whole or not at
    all, uploads it to `push`, user/name on the hub, and prints how it is used. UserError,
    RunError."""
    if to != GGUF and gguf_type != DEFAULT_TYPE:
        raise UserError(f"gguf_type {gguf_type} is for GGUF, and --to is {to}: set --to {GGUF}")
    if output is None and push is None:
        raise UserError("output is not set: set --output FOLDER, or --push user/name")
    with tempfile.TemporaryDirectory(prefix="unslothrl-") as temporary:
        target = expanded(output) if output else Path(temporary) / Path(str(push)).name
        if target.suffix.lower() in (".gguf", ".safetensors"):
            raise UserError(f"output {output} is to be a folder: set --output {target.stem}")
        is_empty = target.is_dir() and not any(target.iterdir())
        if target.is_symlink() or (target.exists() and not is_empty):
            raise UserError(f"output {target}: it exists already: name a new folder")
        found = find(adapter, any_kind=to == ADAPTER)
        if push is not None:
            if push.count("/") != 1:
                raise UserError(f"push {push!r:.60}: give user/name")
            with hub(push) as api:
                api.whoami()  # refused before anything is computed
        source = source_of(found, model)
        with staged(target) as folder:
            if to == GGUF:
                lines = write_gguf(source, folder, target, gguf_type)
            else:
                lines = (write_adapter if to == ADAPTER else write_merged)(source, folder, target)
                if source.use is not None and source.use.chat_template is not None:
                    (folder / TEMPLATE_FILE).write_text(source.use.chat_template, "utf-8")
            text = card.card(source.title, source.use, source.name, card.history(source.run), to)
            (folder / CARD_FILE).write_text(text, encoding="utf-8")
        if output is not None:
            said = "\n".join([f"{to}: {target}", *lines])
            print(for_terminal(said, kept="\n\t"), flush=True)
        if push is not None:  # what was written stays, whatever comes of this
            with hub(push) as api:
                address = api.create_repo(push, private=private, exist_ok=True)
                message = "Upload with unslothrl"
                api.upload_folder(repo_id=push, folder_path=target, commit_message=message)
            print(for_terminal(f"pushed: {address}"))


@contextlib.contextmanager
def hub(name: str) -> Iterator[Any]:
    """Inside it every error is one line, without what a server's page may hold."""
    from huggingface_hub import HfApi

    try:
        yield HfApi(library_name="unslothrl")
    except Exception as error:  # of HTTP, of sockets, of the hub's own checks
        raise RunError(
            f"push {name}: not uploaded ({one_line(error, 160)}): log in with `hf auth login`, or "
            "set HF_TOKEN, and check the network and the name"
        ) from None


def write_adapter(source: Source, folder: Path, shown: Path) -> list[str]:
    """The adapter with its base's name, tokenizer and chat template. -> lines to print"""
    adapter = source.folder
    files = {**adapter_use.beside(Use(base=source.name, system_prompt=""), source.base).files}
    names = [WEIGHTS_FILE, adapter_use.USE_FILE]
    if scores := source.use is not None and source.use.kind == adapter_use.REWARD_MODEL:
        judge.head_of(judge.folder_of(f"{judge.PREFIX}{adapter}"))
        names.append(judge.HEAD_FILE)
    files |= {name: adapter / name for name in names if (adapter / name).exists()}
    for name, path in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / name)
    base = adapter_use.base_name(source.name, shown)
    config = with_base((adapter / CONFIG_FILE).read_text("utf-8"), base)
    (folder / CONFIG_FILE).write_text(config, encoding="utf-8")
    if scores:
        return [f"reward: {origin.command('train', '--reward', f'{judge.PREFIX}{shown}')}"]
    settings = adapter_check.check_settings(str(adapter))
    stored = base_model.read_config(base_model.find(source.name, weights=False))
    if "text_config" in stored:  # in the whole model its layers have other names
        return serving.adapter_lines(shown, str(source.base), settings.rank, False)[:1]
    is_16_bit = not stored.get("quantization_config") and source.name not in BASES
    return serving.adapter_lines(shown, base, settings.rank, is_16_bit)


def write_merged(source: Source, folder: Path, shown: Path) -> list[str]:
    """The merged model. -> lines to print: how far its logits are from the adapter's."""
    from unslothrl.export import merging

    with_adapter, model = merging.merged(source.base, source.folder, half_here())
    line = compared(with_adapter, model, source, shown, "merged model")
    model.save_pretrained(folder)
    for path in tokenizer_files(source.base):
        shutil.copyfile(path, folder / path.name)
    return [line, *serving.merged_lines(shown, source.folder)]


def write_gguf(source: Source, folder: Path, shown: Path, kind: str) -> list[str]:
    """The merged model as one GGUF file, and a Modelfile. -> lines to print"""
    import torch
    from transformers import AutoConfig

    from unslothrl.export import gguf, gguf_tokenizer, merging

    config = AutoConfig.from_pretrained(source.base, trust_remote_code=False)
    gguf.check(config)
    tokenizer = source.tokenizer()
    special, adds_bos = special_ids(source, tokenizer)
    converted = replace(
        gguf_tokenizer.read_tokenizer(source.base, config.vocab_size),
        special=special,
        adds_bos=adds_bos,
        chat_template=tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None,
    )
    with_adapter, model = merging.merged(
        source.base, source.folder, half_here(), stored=torch.float16
    )
    file = f"{serving.module_name(shown)}-{kind}.gguf"
    gguf.write(model, converted, folder / file, kind, source.title)
    gguf.round_as_stored(model, kind)
    merging.compute_in_float32(model)
    line = compared(with_adapter, model, source, shown, f"{kind} weights")
    stops = [tokenizer.convert_ids_to_tokens(id) for id in base_model.stop_token_ids(source.base)]
    text = serving.modelfile(file, tokenizer, source.use, stops, adds_bos)
    (folder / serving.MODELFILE).write_text(text, encoding="utf-8")
    return [line, *serving.gguf_lines(shown, shown / file, source.use)]


def special_ids(source: Source, tokenizer: Any) -> tuple[dict[str, int], bool]:
    """-> (ids by GGUF's names, whether the tokenizer begins a text with its first one)"""
    config = base_model.read_config(source.base)
    stops = base_model.stop_token_ids(source.base)
    eos = tokenizer.eos_token_id if tokenizer.eos_token_id in stops else stops[0]
    others = [id for id in stops if id != eos]
    bos = tokenizer.bos_token_id
    found = {
        "bos": config.get("bos_token_id") if bos is None else bos,
        "eos": eos,
        "eot": others[0] if others else None,
        "pad": tokenizer.pad_token_id,
    }
    adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    return {name: id for name, id in found.items() if isinstance(id, int)}, adds_bos


def compared(with_adapter: Any, model: Any, source: Source, shown: Path, what: str) -> str:
    """A line on how far the logits of what is exported are from the adapter's, also for its run's
    record. RunError where they are the base's."""
    from unslothrl.export import merging

    prompts = prompts_of(source)
    alike = merging.likeness(with_adapter, model, prompts)
    with with_adapter.disable_adapter():
        base = merging.likeness(with_adapter, model, prompts)
    if base == alike or base.mean < NEARER * alike.mean:
        raise RunError(
            f"export {source.folder}: the {what} would be a copy of the base (its logits are "
            f"{base.mean:.2g} from the base's, {alike.mean:.2g} from the adapter's): name one "
            "that has learnt something"
        )
    if source.run is not None:
        means = {"from_adapter": alike.mean, "from_base": base.mean}
        RunFolder(source.run).add_check({"export": str(shown), "kind": what, **means})
    return likeness_line(what, alike)


def likeness_line(what: str, alike: Any) -> str:
    verdict = "rounding explains that"
    if alike.same_choice < ROUNDED:
        verdict = "more than rounding explains: compare their answers before you use it"
    return (
        f"logits of the {what} and of the adapter over its 4-bit base, on {alike.prompts} prompts: "
        f"largest difference {alike.largest:.3g}, mean {alike.mean:.2g}; the same token is "
        f"likeliest at {100 * alike.same_choice:.1f}% of the positions: {verdict}"
    )


def prompts_of(source: Source) -> list[tuple[int, ...]]:
    """The ids of some questions, as the adapter's run put them."""
    tokenizer = source.tokenizer()
    system = source.use.system_prompt if source.use is not None else ""
    problems = arithmetic.problems("test", 0)
    texts = [next(problems)["problem"] for _ in range(COMPARED)]
    if tokenizer.chat_template:
        texts = [rendering.render(tokenizer, text, system) for text in texts]
    return [tuple(ids) for ids in rendering.tokenise(tokenizer, texts)]
