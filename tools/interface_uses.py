"""What the package uses of vLLM, Unsloth, bitsandbytes, Ray and TRL, as its code says.

A type checker sees none of it: these objects reach us as Any. So the code is read. What is
imported, and what is reached from an import, has a path of its own. Any other attribute (also by
getattr, hasattr and setattr) is looked up by its name in tests/private_interfaces.json, where an
entry of a class belongs to the files that use it. A name that is neither there, nor ours, nor of
Python's and torch's own classes is unknown: whose it is has to be written into the list.
"""

import ast
import pathlib
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import library_source as source

ROOT = Path(__file__).parents[1]
PACKAGE = "unslothrl"
LIBRARIES = ("vllm", "unsloth", "unsloth_zoo", "bitsandbytes", "ray", "trl")
HUGGING_FACE = ("transformers", "peft", "accelerate")  # of these only what begins with _ is listed
FOLDERS = ("backends", "cluster", "engines", "offline")  # whose files have objects of the libraries
FILES = ("export/merging.py", "weights/published.py", "weights/quantise.py")
VARIABLE = re.compile(r"(VLLM|UNSLOTH|RAY|BNB|TRL)_[A-Z0-9_]+")
IMPORT = re.compile(rf"^ *(import|from) ({'|'.join(LIBRARIES)})\b", re.MULTILINE)
MODULE = re.compile(rf"({'|'.join(LIBRARIES)})(\.\w+)+")
PUBLIC = (  # members of transformers, peft, accelerate, torch, Ray's records and Python
    "active_adapters add_adapter base_lrs base_model compute_dtype delete_adapter"
    " compute_type_is_set disable_adapter disable_adapters enable_input_require_grads epoch"
    " generation_config get_base_model get_delta_weight get_input_embeddings get_output_embeddings"
    " get_tensor get_text_config get_train_dataloader global_step gradient_accumulation_steps"
    " gradient_checkpointing_enable hidden_size in_features _last_lr last_epoch last_hidden_state"
    " load_adapter lora_A lr_lambdas manual_seed mark_non_differentiable model_type"
    " modules_to_save out_features pad_to_multiple_of param_groups past_key_values peft_config"
    " per_device_eval_batch_size precompute_ref_log_probs quant_state quantization_config"
    " remove_callback save_for_backward save_pretrained saved_tensors scaler set_adapter"
    " set_attn_implementation should_evaluate should_log should_save should_training_stop"
    " support_avx512bf16_for_cpu tie_weights train_dataset r target_modules task_type use_rslora"
    " layer_types logit_scale logits_scaling attn_logit_softcapping final_logit_softcapping"
    " sliding_window use_sliding_window lora_B actor_id eos_token_id pad_token_id pop_all callback"
    " enter_context fileno hexdigest lineno setLevel from_pretrained base_layer self_attn"
    " _forward_pre_hooks to_dict Pipe Process sentinel as_dict all_tied_weights_keys"
    " apply_chat_template _asdict"
)
# Strings of ours that are names in a library: our file and constant -> where they are.
CONSTANTS = {
    ("offline/training.py", "FIGURES"): "trl.trainer.*|transformers.trainer",
}
OUR_STRINGS = {"skipped_updates"}
DEFINED = {"unsloth.FastLanguageModel": "unsloth.models.loader.FastLanguageModel"}  # two have it
HELD = {"ray": "ray"}  # modules that arrive as arguments or attributes
UNKNOWN = "whose is "


@dataclass
class Use:
    files: set[str] = field(default_factory=set)
    positional: int | None = None  # arguments by position, where it is called
    keywords: set[str] = field(default_factory=set)
    is_open: bool = False  # it is also called with arguments that the code does not name
    is_replaced: bool = False  # we override or replace it: its parameters are ours to accept
    either: set[str] = field(default_factory=set)  # what is used where a version lacks it


@cache
def texts() -> dict[str, str]:
    """The package's files, by their path in it."""
    root = ROOT / PACKAGE
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    return {file: ast.parse(text) for file, text in texts().items()}


@cache
def known() -> set[str]:
    """Names of ours, and members of classes of Python, NumPy and torch."""
    import numpy as np
    import torch

    kinds: list[Any] = [torch.Tensor, torch.nn.Module, np.ndarray, np.random.Generator, Path]
    kinds += [OSError, bool, bytes, dict, float, int, list, set, str, tuple, re.Match, Future]
    kinds += [pathlib.os.stat_result, threading.Thread]  # type: ignore[attr-defined]
    found = {name for kind in kinds for name in dir(kind)} | {*PUBLIC.split()}
    for node in (node for tree in trees().values() for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            for each in (each for target in targets for each in ast.walk(target)):
                if isinstance(each, ast.Name) or last_name(getattr(each, "value", each)) == "self":
                    found.add(last_name(each))
    return found


def last_name(node: ast.AST) -> str:
    """ "c" of a.b.c and of a.b.c()."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


def is_class(path: str) -> bool:
    return path.rpartition(".")[2].lstrip("_")[:1].isupper()


class Reader:
    """Collects the uses of a file. `listed`: path -> the files that use it, as the list has it."""

    def __init__(self, file: str, uses: defaultdict[str, Use], listed: Mapping[str, list[str]]):
        self.file, self.tree, self.uses = file, trees()[file], uses
        self.by_name: dict[str, list[str]] = {}
        for path in listed:
            owner, _, name = path.rpartition(":" if ":" in path else ".")
            if ":" in path or is_class(owner):
                self.by_name.setdefault(name, []).append(path)
        self.listed = listed
        self.followed: set[str] = set()  # names whose values are looked for
        self.imported: dict[str, str] = dict(HELD)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.imported[alias.asname or top] = alias.name if alias.asname else top
                    if top in LIBRARIES and "." in alias.name:
                        self.use(alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    path = f"{node.module}.{alias.name}"
                    self.imported[alias.asname or alias.name] = path
                    if path.partition(".")[0] in LIBRARIES:
                        self.use(path)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and (held := self.path_of(node.value)):
                self.imported[last_name(node.targets[0])] = held

    def use(self, path: str, call: ast.Call | None = None, is_replaced: bool = False) -> None:
        use = self.uses[path]
        use.files.add(self.file)
        use.is_replaced |= is_replaced
        if call is not None:
            named = [each for each in call.args if not isinstance(each, ast.Starred)]
            use.positional = max(use.positional or 0, len(named))
            use.is_open |= len(named) < len(call.args)
            for keyword in call.keywords:
                use.is_open |= keyword.arg is None
                use.keywords |= {keyword.arg} if keyword.arg else self.strings_in(keyword.value)

    def read(self) -> None:
        parents = {c: node for node in ast.walk(self.tree) for c in ast.iter_child_nodes(node)}
        for node in ast.walk(self.tree):
            parent = parents.get(node)
            call = parent if isinstance(parent, ast.Call) and parent.func is node else None
            if isinstance(node, ast.Name) and call:
                if (path := self.imported.get(node.id, "")).partition(".")[0] in LIBRARIES:
                    self.use(path, call)
            elif isinstance(node, ast.Attribute):
                is_replaced = isinstance(node.ctx, ast.Store | ast.Del)
                self.attribute(node.value, node.attr, call, is_replaced)
            elif isinstance(node, ast.Call) and len(node.args) > 1:
                self.by_string(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.mentioned(node.value)

    def by_string(self, node: ast.Call) -> None:
        """getattr and its like."""
        name = last_name(node)
        of_module = last_name(node.args[0]) == "import_module"
        if name in ("getattr", "hasattr", "setattr") and not of_module:
            paths: set[str] = set()
            for each in self.strings_in(node.args[1]):
                paths |= self.attribute(node.args[0], each, None, name == "setattr")
            if name == "hasattr" and len(paths) > 1:
                for path in paths:
                    self.uses[path].either |= paths - {path}

    def attribute(
        self, value: ast.expr, name: str, call: ast.Call | None, is_replaced: bool
    ) -> set[str]:
        """`name` of `value` -> the paths that it may have."""
        owner = self.path_of(value)
        if name.startswith("__"):
            return set()
        if owner is not None and self.leads_on(owner):
            path, top = f"{owner}.{name}", owner.partition(".")[0]
            if source.file_of(path) is None and (top in LIBRARIES or name.startswith("_")):
                self.use(path, call, is_replaced)
                return {path}
            return set()
        if owner is None and self.is_imported(value):
            return set()  # of a module of ours, of Python's or of another library
        promised = HUGGING_FACE if not name.startswith("_") else ()
        paths = self.by_name.get(name, ())
        found = {path for path in paths if ":" not in path and not path.startswith(promised)}
        here = {path for path in found if self.file in self.listed[path]}
        is_unknown = not self.mentioned(name) and name not in known()
        for path in here or (found if is_unknown else ()):
            self.use(path, call, is_replaced)
        if is_unknown and not found:
            self.use(f"{UNKNOWN}{last_name(value)}.{name}?")
        return here or found

    def mentioned(self, name: str) -> bool:
        """Names that a library sets on objects of others, and that it has in dicts."""
        paths = [path for path in self.by_name.get(name, ()) if ":" in path]
        for path in paths:
            if self.file in self.listed[path] or name not in known():
                self.use(path)
        return bool(paths)

    def leads_on(self, owner: str) -> bool:
        """Whether a member of it has a path: it is a module, a class, or what the source lacks."""
        is_module = source.file_of(owner) is not None
        top = owner.partition(".")[0]
        return is_module or is_class(owner) or (owner == top or source.file_of(top) is None)

    def is_imported(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        path = self.imported.get(getattr(node, "id", ""), "")
        return bool(path) and path.partition(".")[0] not in (*LIBRARIES, *HUGGING_FACE)

    def path_of(self, node: ast.expr) -> str | None:
        """The dotted path of what is reached from an import of a library; None of all else."""
        if isinstance(node, ast.Name):
            path = self.imported.get(node.id, "")
            is_library = path.partition(".")[0] in (*LIBRARIES, *HUGGING_FACE)
            return DEFINED.get(path, path) if is_library else None
        if isinstance(node, ast.Attribute) and (owner := self.path_of(node.value)):
            path = f"{owner}.{node.attr}"
            return DEFINED.get(path, path) if self.leads_on(owner) else None
        return HELD.get(last_name(node)) if isinstance(node, ast.Attribute) else None  # self.ray

    def strings_in(self, node: ast.expr | None) -> set[str]:
        """The strings that an expression may be: a tuple's elements, a dict's keys."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        return set().union(*map(self.strings_in, self.parts_of(node)))

    def parts_of(self, node: ast.expr | None) -> list[ast.expr | None]:
        match node:
            case ast.Tuple() | ast.List():
                return [*node.elts]
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return [value if key is None else key for key, value in pairs]
            case ast.DictComp():
                return [node.key]
            case ast.IfExp():
                return [node.body, node.orelse]
            case ast.BinOp():
                return [node.left, node.right]
            case ast.Call():
                return [ast.Constant(each) for each in self.returned(last_name(node))]
            case ast.Name() if node.id not in self.followed:
                self.followed.add(node.id)
                strings = set().union(*map(self.strings_in, self.values_of(node.id)))
                self.followed.remove(node.id)
                return [ast.Constant(each) for each in sorted(strings)]
        return []

    def values_of(self, name: str) -> Iterator[ast.expr]:
        """What a name is bound to, looped over or given keys of, in this file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Subscript) and last_name(target.value) == name:
                        yield target.slice
                    elif isinstance(target, ast.Name) and target.id == name:
                        yield node.value
            elif isinstance(node, ast.For | ast.comprehension) and last_name(node.target) == name:
                yield node.iter

    def returned(self, name: str) -> set[str]:
        """The strings that a function of ours may return, of this file or another."""
        module = self.imported.get(name, "").removeprefix(f"{PACKAGE}.").rpartition(".")[0]
        file = module.replace(".", "/") + ".py"
        reader = Reader(file, defaultdict(Use), {}) if file in trees() else self
        for node in ast.walk(reader.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                values = (each.value for each in ast.walk(node) if isinstance(each, ast.Return))
                return set().union(*map(reader.strings_in, values))
        return set()

    # What our subclasses of a library's class, and the mixins of these, take from it.

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def inherit(self, node: ast.ClassDef, bases: set[str]) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.FunctionDef) and each in node.body:
                self.inherited(each.name, bases, None, is_replaced=True)
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
                if last_name(each.func.value) in ("self", "super"):
                    self.inherited(each.func.attr, bases, each)
            elif isinstance(each, ast.Attribute) and last_name(each.value) in ("self", "super"):
                self.inherited(each.attr, bases, None)

    def inherited(
        self, name: str, bases: set[str], call: ast.Call | None, is_replaced: bool = False
    ) -> None:
        for kind in filter(None, map(source.resolve, bases)):
            found = None if name.startswith("__") else source.member(kind, name)
            path = found and f"{source.class_of(kind, found)}.{name}"
            if path and (not path.startswith(HUGGING_FACE) or name[0] == "_" or is_replaced):
                self.use(path, call, is_replaced)


def families(readers: list[Reader]) -> dict[str, set[str]]:
    """Our class -> the libraries' classes that it, or one that it is mixed into, extends."""
    nodes = [(reader, node) for reader in readers for node in reader.classes()]
    extended = {
        node.name: {path for base in node.bases if (path := reader.path_of(base))}
        for reader, node in nodes
    }
    pairs = [(n.name, b) for _, n in nodes for b in map(last_name, n.bases) if b in extended]
    for to, origin in ((0, 1), (1, 0)):  # what a base extends, then what it is mixed into
        for pair in pairs * 4:  # deeper than our classes are
            extended[pair[to]] |= extended[pair[origin]]
    return extended


def uses(listed: Mapping[str, list[str]]) -> dict[str, Use]:
    """Path -> how the package uses it; of the list (path -> files) whose an attribute is."""
    found: defaultdict[str, Use] = defaultdict(Use)
    read = [
        file
        for file, text in texts().items()
        if file.startswith(FOLDERS) or file in FILES or IMPORT.search(text)
    ]
    readers = [Reader(file, found, listed) for file in read]
    extended = families(readers)
    for reader in readers:
        reader.read()
        for node in reader.classes():
            reader.inherit(node, extended[node.name])
    for file, whole in texts().items():
        is_named = VARIABLE.search(whole) or MODULE.search(whole)
        for each in ast.walk(trees()[file]) if is_named else ():
            text = str(each.value) if isinstance(each, ast.Constant) else ""
            if VARIABLE.fullmatch(text):
                found[f"${text}"].files.add(file)
            elif MODULE.fullmatch(text):
                found[text].files.add(file)
    for (file, name), modules in CONSTANTS.items():
        reader = Reader(file, found, listed)
        for text in set().union(*map(reader.strings_in, reader.values_of(name))) - OUR_STRINGS:
            reader.use(f"{modules}:{text}")
    return {path: use for path, use in sorted(found.items()) if use.files}
