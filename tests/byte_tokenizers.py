"""Tokenizers of one token per byte, with the special tokens of a model family; no transformers."""

import json
import re
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PLAIN = ("think", "tool", "arg_", "answer", "invoke")  # such tags are single tokens, not special


class ByteTokenizer:
    """As transformers' fast tokenizers behave, for `tokens` beside the 256 bytes."""

    unk_token_id = bos_token_id = None

    def __init__(self, tokens, eos, template=None, name="", bos="", plain=PLAIN):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {letter: i for i, letter in enumerate(letters)}
        self.backend_tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=False
        )
        self.backend_tokenizer.decoder = decoders.ByteLevel()
        for token in dict.fromkeys((*tokens, eos, *filter(None, [bos]))):
            special = token == eos or not any(part in token for part in plain)
            added = AddedToken(token, special=special, normalized=False)
            kind = "special_tokens" if special else "tokens"
            getattr(self.backend_tokenizer, f"add_{kind}")([added])
        self.added_tokens_decoder = self.backend_tokenizer.get_added_tokens_decoder()
        special = {i: t.content for i, t in self.added_tokens_decoder.items() if t.special}
        self.all_special_ids, self.all_special_tokens = list(special), list(special.values())
        self.eos_token, self.bos_token, self.name_or_path = eos, bos, name
        self.eos_token_id = self.convert_tokens_to_ids(eos)
        self.chat_template = template

    def __len__(self):
        return self.backend_tokenizer.get_vocab_size()

    def __call__(self, texts, add_special_tokens=True, verbose=True):
        return {"input_ids": [self.encode(text) for text in texts]}

    def encode(self, text, add_special_tokens=True):
        return self.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=False):
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, token):
        return self.backend_tokenizer.token_to_id(token)

    @cached_property
    def compiled(self):
        return compiled(self.chat_template)

    def apply_chat_template(self, messages, tools=None, tokenize=False, **given):
        assert not tokenize
        given |= {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return self.compiled.render(messages=messages, tools=tools, **given)


@lru_cache
def compiled(template):
    """With the settings and functions that transformers gives to templates."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: "26 Jul 2024"
    # Marks what assistants write; transformers adds the tag, which changes no text.
    template = re.sub(r"({%-?\s*)generation\b", r"\1if true", template)
    return environment.from_string(re.sub(r"({%-?\s*)endgeneration\b", r"\1endif", template))


@lru_cache
def installed_templates():
    """The chat templates that TRL and vLLM bring, by name. Neither is imported."""
    found = {}
    places = {"trl": "chat_templates", "vllm": "transformers_utils/chat_templates"}
    for package, folder in places.items():
        spec = find_spec(package)
        if spec is not None and spec.origin:
            for path in sorted((Path(spec.origin).parent / folder).glob("*.jinja")):
                found[f"{package}/{path.stem}"] = path.read_text()
    return found


MARKER = re.compile(r"<\|[^|<>\n]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?[a-z_]{3,20}>|\[/?[A-Z_]{3,20}\]")
ENDS = ["<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>"]


@lru_cache
def for_template(name, template=None):
    """With the markers that stand in the template, and an end token that it writes."""
    template = installed_templates()[name] if template is None else template
    tokens = sorted(set(MARKER.findall(template)))
    eos = next((end for end in ENDS if end in template), "</s>")
    return ByteTokenizer(tokens, eos, template, name, bos="<bos>")
