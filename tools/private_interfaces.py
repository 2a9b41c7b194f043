"""Lists what the package uses of vLLM, Unsloth, bitsandbytes, Ray and TRL in
tests/private_interfaces.json, and checks it against the installed versions' source.

    python tools/private_interfaces.py            # writes the list: `make interfaces`
    python tools/private_interfaces.py --check    # what is not as listed here; exit status 1

A type checker sees none of it: these objects reach us as Any. So the code is read: every attribute
(also by getattr, hasattr and setattr), call, override, import, environment variable and module's
name, of every object that is not known to be ours. OWNERS says whose a receiver is.
"""

import ast
import builtins
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import library_source as source

ROOT = Path(__file__).parents[1]
PACKAGE = "unslothrl"
LIST = ROOT / "tests" / "private_interfaces.json"
LIBRARIES = {"vllm", "unsloth", "unsloth_zoo", "bitsandbytes", "ray", "trl"}
HUGGING_FACE = {"transformers", "peft", "accelerate"}
PROMISED = (*HUGGING_FACE, "ray.actor")  # of these only what begins with an underscore is listed
NOT_ON_A_CPU = {"unsloth", "unsloth_zoo"}  # the CPU set lacks them
FOLDERS = ("backends", "cluster", "engines", "offline")  # whose Any values are looked at
FILES = ("export/merging.py", "weights/packed.py", "weights/quantise.py", "embedded/make_base.py")
VARIABLE = re.compile(r"(VLLM|UNSLOTH|RAY|BNB|TRL)_[A-Z0-9_]+")
IMPORT = re.compile(rf"^ *(import|from) ({'|'.join(LIBRARIES)})\b", re.MULTILINE)
MODULE = re.compile(rf"({'|'.join(LIBRARIES)})(\.\w+)+")

# Owner -> the names under which its objects reach us: variables, attributes, "NAME()" for what a call
# returns, "NAME[]" for an element; "FILE:NAME" holds in one file, "a.b" of a `b` of an `a`. An owner
# with "=" is a module or class itself, "(A|B)" is any of these.
OWNERS = {
    "": "begun ctx each entry error group info look lr_scheduler model() decoder() optimizer other"
    " output_embeddings plan process options[] published schedule stat() tables tokenizer view wrong"
    " engines/chunk.py:output offline/weighting.py:outputs backends/unsloth.py:output engines/canary.py:state",
    "=ray": "ray",
    "=ray._raylet": "raylet",
    "ray._private.worker.RayContext": "context",
    "ray._private.node.Node": "worker.node",
    "ray._private.worker.Worker": "global_worker",
    "ray._raylet.GcsClient": "client gcs_client",
    "ray.actor.ActorHandle": "host hosts[] remote call fetch ready task progress",
    "ray.runtime_context.RuntimeContext": "get_runtime_context() here",
    "vllm.LLM": "llm",
    "vllm.config.ModelConfig": "model_config",
    "vllm.device_allocator.AllocationData": "backends/unsloth.py:data",
    "vllm.device_allocator.cumem.CuMemAllocator": "CuMemAllocator.instance",
    "vllm.logprobs.Logprob": "step[]",
    "vllm.lora.layers.base_linear.BaseLinearLayerWithLoRA": "engines/readback.py:layer",
    "vllm.lora.layers.utils.LoRAMapping": "mapping",
    "vllm.lora.model_manager.LoRAModelManager": "manager",
    "vllm.lora.request.LoRARequest": "loaded.request",
    "vllm.model_executor.models.qwen2.Qwen2ForCausalLM": "engines/readback.py:model",
    "vllm.model_executor.models.utils.WeightsMapper": "mapper",
    "vllm.outputs.CompletionOutput": "outputs[]",
    "vllm.outputs.RequestOutput": "engines/vllm_requests.py:output",
    "(vllm.outputs.RequestOutput|vllm.outputs.CompletionOutput)": "engines/vllm.py:output",
    "vllm.v1.core.sched.scheduler.Scheduler": "scheduler",
    "vllm.v1.engine.core.EngineCore": "engine_core.engine_core",
    "vllm.v1.engine.core_client.InprocClient": "engine_core",
    "vllm.v1.engine.llm_engine.LLMEngine": "llm_engine engines/vllm_requests.py:engine",
    "vllm.v1.engine.output_processor.OutputProcessor": "output_processor",
    "vllm.v1.engine.output_processor.RequestState": "engines/vllm_requests.py:state",
    "vllm.v1.executor.multiproc_executor.MultiprocExecutor": "executor model_executor",
    "vllm.v1.executor.multiproc_executor.WorkerProcHandle": "engines/vllm_split.py:worker",
    "vllm.v1.request.Request": "engines/vllm_requests.py:request",
    "=unsloth.models.loader.FastLanguageModel": "FastLanguageModel",
    "bitsandbytes.functional.QuantState": "engines/vllm_worker.py:state weights/packed.py:state"
    " quant_state",
    "=(trl.SFTConfig|trl.DPOConfig|trl.RewardConfig)": "CONFIGS[]",
    "transformers.Trainer": "trainer",
    "transformers": "accelerator args config control model plain saved state begun.state"
    " bfloat16() from_pretrained() module",
    "peft": "backends/readback.py:layer base_model get_base_model() owner peft_config[] score shape"
    " trained with_adapter wrapped projection self_attn layer layers[] weight",
}
# What a library sets on objects of others, and what it names in dicts: module -> names.
MENTIONED = {
    "accelerate.hooks": "_old_forward",
    "ray._private.node": "address_info[]",
    "unsloth.models.llama": "vllm_engine paged_attention paged_attention_K paged_attention_V"
    " _unsloth_allow_packed_overlength",
    "transformers.configuration_utils": "_attn_implementation",
    "trl.trainer.*": "_total_train_tokens",
    "unsloth_zoo.tiled_mlp": "_unsloth_forward",
    "vllm.lora.model_manager": "lora_manager",
    "vllm.model_executor.model_loader.bitsandbytes_loader|vllm_bnb_plugin.bitsandbytes_loader":
    "bnb_quant_state bnb_shard_offsets",
    "ray._private.worker": "gcs_client",
}
MENTIONED_BY = {name: module for module, names in MENTIONED.items() for name in names.split()}
# Strings of ours that are names in a library: our file and constant -> where they are.
CONSTANTS = {
    ("offline/trainers.py", "FIGURES"): "trl.trainer.*|transformers.trainer",
    ("backends/patches.py", "PROJECTIONS"): "unsloth.models.llama",
}
OUR_STRINGS = {"skipped_updates"}
FORWARDED = {  # what **kwargs are: parameters of a class, or names in a module
    "ray.remote": "ray._common.ray_option_utils",
    "unsloth.models.loader.FastLanguageModel.get_peft_model":
    "unsloth.models.llama.FastLlamaModel.get_peft_model",
    "vllm.LLM": "vllm.engine.arg_utils.EngineArgs",
}
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
def nodes_of(node: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(node))


@cache
def texts() -> dict[str, str]:
    """The package's files, by their path in it."""
    root = ROOT / PACKAGE
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    return {file: ast.parse(text) for file, text in texts().items()}


@cache
def table() -> dict[str, str | None]:
    """Name -> owner; None: it is ours."""
    return {name: owner or None for owner, names in OWNERS.items() for name in names.split()}


@cache
def well_known() -> set[str]:
    """Members of Python's and torch's own classes, which every value may be."""
    import numpy as np
    import torch

    kinds: list[Any] = [torch.Tensor, torch.nn.Module, np.ndarray, Path, BaseException]
    kinds += [bool, bytes, dict, float, int, list, set, str, tuple]
    return {name for kind in kinds for name in dir(kind)}


def is_any(annotation: ast.expr | None) -> bool:
    """Whether it is Any or has one in it."""
    return annotation is not None and re.search(r"\bAny\b", ast.unparse(annotation)) is not None


@cache
def ours() -> tuple[set[str], set[str]]:
    """(members of our classes, functions and members that give an object of any kind)."""
    members, anything = set(), set()
    for node in (node for tree in trees().values() for node in nodes_of(tree)):
        if isinstance(node, ast.ClassDef):
            members |= source.names_in(node.body).keys() | own_attributes(node)
            for init in node.body:
                if isinstance(init, ast.FunctionDef) and init.name == "__init__":
                    given = {a.arg for a in init.args.args if is_any(a.annotation)}
                    anything |= given & own_attributes(node)
        elif isinstance(node, ast.FunctionDef) and is_any(node.returns):
            anything.add(node.name)
        elif isinstance(node, ast.AnnAssign) and is_any(node.annotation):
            anything.add(last_name(node.target))
    return members, anything


def own_attributes(node: ast.ClassDef) -> set[str]:
    return {
        each.attr
        for each in nodes_of(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and last_name(each.value) == "self"
    }


def last_name(node: ast.AST) -> str:
    """ "c" of a.b.c, "c()" of a.b.c(), "c[]" of a.b.c[0]."""
    if isinstance(node, ast.Call):
        return f"{last_name(node.func)}()"
    if isinstance(node, ast.Subscript):
        return f"{last_name(node.value)}[]"
    return getattr(node, "attr", getattr(node, "id", ""))


@cache
def stored_in(node: ast.AST) -> set[str]:
    names = (each for each in nodes_of(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


Scope = dict[str, str | None]  # name -> owner; "": whoever's it is; None: ours


class Reader:
    """Collects the uses of a file."""

    def __init__(self, file: str, uses: defaultdict[str, Use]):
        self.file, self.tree, self.uses = file, trees()[file], uses
        self.imported: dict[str, str] = {}
        self.within: ast.AST = self.tree  # the function that is read
        self.functions = {n.name: n for n in nodes_of(self.tree) if isinstance(n, ast.FunctionDef)}
        for node in nodes_of(self.tree):
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

    def use(self, path: str, call: ast.Call | None = None, is_replaced: bool = False) -> None:
        use = self.uses[path]
        use.files.add(self.file)
        use.is_replaced |= is_replaced
        if call is not None:
            use.positional = max(use.positional or 0, len(call.args))
            use.is_open |= any(isinstance(arg, ast.Starred) for arg in call.args)
            for keyword in call.keywords:
                names = {keyword.arg} if keyword.arg else self.keys_of(keyword.value)
                use.is_open |= keyword.arg is None
                use.keywords |= names

    def read(self) -> None:
        self.visit(self.tree, {}, None)

    def visit(self, node: ast.AST, scope: Scope, parent: ast.AST | None) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            outer, self.within = self.within, node
            scope = self.scope_of(node, scope)
            for child in ast.iter_child_nodes(node):
                self.visit(child, scope, node)
            self.within = outer
            return
        elif isinstance(node, ast.Attribute):
            self.attribute(node.value, node.attr, scope, node, parent)
        elif isinstance(node, ast.Call):
            self.call(node, scope)
        elif isinstance(node, ast.Subscript) and last_name(node.value) == "vars()":
            for name in self.strings_in(node.slice) & MENTIONED_BY.keys():
                self.use(f"{MENTIONED_BY[name]}:{name}")
        elif isinstance(node, ast.Subscript) and f"{last_name(node.value)}[]" in MENTIONED_BY:
            for name in self.strings_in(node.slice):
                self.use(f"{MENTIONED_BY[last_name(node)]}:{name}")
        for child in ast.iter_child_nodes(node):
            self.visit(child, scope, node)

    def call(self, node: ast.Call, scope: Scope) -> None:
        name = last_name(node.func)
        if isinstance(node.func, ast.Name):
            owner = self.owner(node.func, scope) or ""
            if owner.startswith("=") and owner[1:].lstrip("(").partition(".")[0] in LIBRARIES:
                self.use(owner[1:], node)
        if name == "partial" and (owner := self.owner(node.args[0], scope) or "").startswith("="):
            self.use(owner[1:], ast.Call(node.args[0], node.args[1:], node.keywords))
        if name in ("getattr", "hasattr", "setattr") and len(node.args) > 1:
            names = self.strings_in(node.args[1])
            for each in names:
                self.attribute(node.args[0], each, scope, node, None, name == "setattr")
            if name == "hasattr" and len(names) > 1:
                owner = self.owner(node.args[0], scope)
                for each in names:
                    self.uses[f"{owner}.{each}"].either |= {f"{owner}.{n}" for n in names - {each}}

    def attribute(
        self,
        value: ast.expr,
        name: str,
        scope: Scope,
        node: ast.AST,
        parent: ast.AST | None,
        is_replaced: bool = False,
    ) -> None:
        """`name` of `value`; `node` is where it is, and `parent` what that is in."""
        owner = self.owner(value, scope)
        if owner is None or name.startswith("__"):
            return
        if name in MENTIONED_BY:
            return self.use(f"{MENTIONED_BY[name]}:{name}")
        if owner.startswith("="):
            owner = owner[1:]
            if isinstance(parent, ast.Attribute) and self.owner(node, scope) == f"={owner}.{name}":
                return  # a.b of a.b.c
        if not owner:
            if name not in well_known() and name not in ours()[0]:
                self.use(f"{UNKNOWN}{last_name(value)}.{name}?")
            return
        path = f"{owner}.{name}"
        if owner.startswith(PROMISED) and not name.startswith("_"):
            return
        if name in well_known() and source.resolve(path) is None:
            return
        is_called = isinstance(parent, ast.Call) and parent.func is node
        is_replaced |= isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        self.use(path, parent if is_called else None, is_replaced)  # type: ignore[arg-type]

    def scope_of(self, function: ast.FunctionDef | ast.Lambda, outer: Scope) -> Scope:
        scope, arguments = dict(outer), function.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            is_known = each.arg in ("self", "cls") or self.is_known(each.annotation)
            scope[each.arg] = None if is_known else ""
        for _ in range(2):  # a name may be bound from one that is bound below it
            for node in nodes_of(function):
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        self.bind(target, node.value, scope)
                elif isinstance(node, ast.NamedExpr):
                    self.bind(node.target, node.value, scope)
                elif isinstance(node, ast.For | ast.comprehension):
                    self.bind(node.target, node.iter, scope)
                elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                    self.bind(node.optional_vars, node.context_expr, scope)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    scope[node.target.id] = None if self.is_known(node.annotation) else ""
        return scope

    def is_known(self, annotation: ast.expr | None) -> bool:
        if annotation is None or is_any(annotation):
            return False
        names = (n.id for n in ast.walk(annotation) if isinstance(n, ast.Name))
        libraries = LIBRARIES | HUGGING_FACE
        return not any(self.imported.get(n, "").partition(".")[0] in libraries for n in names)

    def bind(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, part in zip(target.elts, value.elts, strict=False):
                self.bind(each, part, scope)
            return
        owner = self.owner(value, scope)
        for each in ast.walk(target):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                found = owner if owner is None or isinstance(target, ast.Name) else ""
                scope[each.id] = scope.get(each.id) or (scope.get(each.id, found) if found is None else found)

    def named(self, name: str, otherwise: str | None, of: str = "") -> str | None:
        known = table()
        for key in (f"{self.file}:{name}", f"{of}.{name}", name):
            if key in known:
                return known[key]
        return otherwise

    def owner(self, node: ast.expr, scope: Scope) -> str | None:
        """None of what is ours, "" of what is anybody's, "=" and a path of what is imported."""
        if isinstance(node, ast.Name):
            if node.id in scope:
                found = scope[node.id]
                return self.named(node.id, "") if found == "" else found
            path = self.imported.get(node.id, "")
            return f"={path}" if path.partition(".")[0] in LIBRARIES | HUGGING_FACE else None
        if isinstance(node, ast.Attribute):
            return self.owner_of_member(node.value, node.attr, scope)
        if isinstance(node, ast.Call):
            return self.owner_of_result(node, scope)
        if isinstance(node, ast.Subscript):
            is_ours = self.owner(node.value, scope) is None
            return self.named(last_name(node), None if is_ours else "")
        if isinstance(node, ast.Starred | ast.Await):
            return self.owner(node.value, scope)
        parts = node.values if isinstance(node, ast.BoolOp) else ()
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            parts = parts[-1:]
        parts = (node.body, node.orelse) if isinstance(node, ast.IfExp) else parts
        parts = (node.elt,) if isinstance(node, ast.GeneratorExp | ast.ListComp) else parts
        owners = [owner for part in parts if (owner := self.owner(part, scope)) is not None]
        return max(owners, default=None)

    def owner_of_member(self, value: ast.expr, name: str, scope: Scope) -> str | None:
        owner = self.owner(value, scope)
        if owner is None:
            return self.named(name, "", last_name(value)) if name in ours()[1] else None
        path = f"{owner}.{name}" if owner.startswith("=") else ""
        return self.named(name, path, last_name(value))

    def owner_of_result(self, node: ast.Call, scope: Scope) -> str | None:
        name = last_name(node.func)
        if name == "getattr":
            known = [self.owner_of_member(node.args[0], n, scope) for n in self.strings_in(node.args[1])]
            return max(filter(None, known), default=self.owner(node.args[0], scope) and "")
        if isinstance(node.func, ast.Name) and hasattr(builtins, name):
            owners = [self.owner(each, scope) for each in node.args]
            return None if not any(each is not None for each in owners) else ""
        owner = self.owner(node.func, scope)
        if owner is None:
            return self.named(f"{name}()", "") if name in ours()[1] else None
        is_class = owner.startswith("=") and name[:1].isupper()
        return self.named(f"{name}()", owner[1:] if is_class else "")

    def keys_of(self, node: ast.expr) -> set[str]:
        """The strings that are keys of a dict."""
        if isinstance(node, ast.Dict):
            own = {k.value for k in node.keys if isinstance(k, ast.Constant)}
            pairs = zip(node.keys, node.values, strict=True)
            return own.union(*(self.keys_of(value) for key, value in pairs if key is None))
        if isinstance(node, ast.DictComp):
            return self.strings_in(node.key)
        if isinstance(node, ast.IfExp):
            return self.keys_of(node.body) | self.keys_of(node.orelse)
        if isinstance(node, ast.BinOp):
            return self.keys_of(node.left) | self.keys_of(node.right)
        if isinstance(node, ast.Call) and (found := self.function(last_name(node.func))):
            reader, reader.within = found
            returned = (n.value for n in ast.walk(reader.within) if isinstance(n, ast.Return))
            return set().union(*(reader.keys_of(value) for value in returned if value))
        if isinstance(node, ast.Name):
            return set().union(*map(self.keys_of, self.values_of(node.id)), self.keys_set(node.id))
        return set()

    def keys_set(self, name: str) -> set[str]:
        """name["key"] = ..."""
        return {
            each.slice.value
            for each in nodes_of(self.within if name in stored_in(self.within) else self.tree)
            if isinstance(each, ast.Subscript)
            and isinstance(each.ctx, ast.Store)
            and last_name(each.value) == name
            and isinstance(each.slice, ast.Constant)
        }

    def values_of(self, name: str) -> Iterator[ast.expr]:
        """What a name is bound to in this function, or else in this file."""
        body = self.within if name in stored_in(self.within) else self.tree
        for node in nodes_of(body):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                is_bound = any(isinstance(each, ast.Name) and each.id == name for each in targets)
                if is_bound and name not in {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}:
                    yield node.value
                elif is_bound and isinstance(node.value, ast.Dict):
                    yield ast.Dict(*zip(*((k, v) for k, v in zip(node.value.keys, node.value.values) if k)))

    def function(self, name: str) -> tuple["Reader", ast.FunctionDef] | None:
        """Ours, here or where it is imported from."""
        if name in self.functions:
            return Reader(self.file, defaultdict(Use)), self.functions[name]
        module = self.imported.get(name, "").removeprefix(f"{PACKAGE}.").rpartition(".")[0]
        file = module.replace(".", "/") + ".py"
        return Reader(file, defaultdict(Use)).function(name) if file in trees() else None

    def strings_in(self, node: ast.expr) -> set[str]:
        """The strings that an expression may be, or that a tuple, dict or loop has."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if isinstance(node, ast.Tuple | ast.List):
            return set().union(*map(self.strings_in, node.elts))
        if isinstance(node, ast.Starred):
            return self.strings_in(node.value)
        if isinstance(node, ast.Dict):
            return self.keys_of(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self.strings_in(node.func.value) if node.func.attr in ("items", "keys") else set()
        if not isinstance(node, ast.Name):
            return set()
        loops = [
            each.iter
            for each in nodes_of(self.within)
            if isinstance(each, ast.For | ast.comprehension)
            and any(getattr(part, "id", "") == node.id for part in ast.walk(each.target))
        ]
        return set().union(*map(self.strings_in, [*loops, *self.values_of(node.id)]))

    # What our subclasses of a library's class, and the mixins of these, take from it.

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in nodes_of(self.tree) if isinstance(node, ast.ClassDef))

    def library_bases(self, node: ast.ClassDef) -> set[str]:
        paths = {self.path_of(base) for base in node.bases}
        return {path for path in paths if path.partition(".")[0] in LIBRARIES | HUGGING_FACE}

    def path_of(self, node: ast.expr) -> str:
        first, _, rest = ast.unparse(node).partition(".")
        return self.imported.get(first, first) + (f".{rest}" if rest else "")

    def inherit(self, node: ast.ClassDef, bases: set[str]) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.FunctionDef) and each in node.body:
                self.inherited(each.name, bases, None, is_replaced=True)
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
                if last_name(each.func.value) in ("self", "super()"):
                    self.inherited(each.func.attr, bases, each)
            elif isinstance(each, ast.Attribute) and last_name(each.value) in ("self", "super()"):
                self.inherited(each.attr, bases, None)

    def inherited(
        self, name: str, bases: set[str], call: ast.Call | None, is_replaced: bool = False
    ) -> None:
        for base in bases:
            kind = source.resolve(base)
            if kind is None or name.startswith("__") or (found := source.member(kind, name)) is None:
                continue
            path = f"{source.class_of(kind, found)}.{name}"
            if not path.startswith(PROMISED) or name.startswith("_") or is_replaced:
                self.use(path, call, is_replaced)


def families(readers: list[Reader]) -> dict[str, set[str]]:
    """Our class -> the libraries' classes that it, or one of ours that it is mixed into, extends."""
    found: dict[str, set[str]] = {}
    parents: dict[str, set[str]] = {}
    for reader in readers:
        for node in reader.classes():
            found[node.name] = reader.library_bases(node)
            parents[node.name] = {last_name(base) for base in node.bases}
    for _ in range(4):  # deeper than our classes are
        for name, above in parents.items():
            for each in above & found.keys():
                both = found[name] | found[each]
                found[name], found[each] = both, both
    return found


def strings(file: str) -> Iterator[str]:
    """Of a file, without its docstrings."""
    documents = {
        id(node.value) for node in nodes_of(trees()[file]) if isinstance(node, ast.Expr)
    }
    for node in nodes_of(trees()[file]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documents:
                yield node.value


def is_read(file: str) -> bool:
    """Whether a file has objects of the libraries."""
    is_near = file.startswith(FOLDERS) or file in FILES
    return is_near or IMPORT.search(texts()[file]) is not None


@cache
def uses() -> dict[str, Use]:
    found: defaultdict[str, Use] = defaultdict(Use)
    readers = [Reader(file, found) for file in trees() if is_read(file)]
    extended = families(readers)
    for reader in readers:
        reader.read()
        for node in reader.classes():
            reader.inherit(node, extended[node.name])
    for file, whole in texts().items():
        for text in strings(file) if VARIABLE.search(whole) or MODULE.search(whole) else ():
            if VARIABLE.fullmatch(text):
                found[f"${text}"].files.add(file)
            elif MODULE.fullmatch(text):
                found[text].files.add(file)
    for (file, name), modules in CONSTANTS.items():
        reader = Reader(file, found)
        for text in set().union(*map(reader.strings_in, reader.values_of(name))) - OUR_STRINGS:
            reader.use(f"{modules}:{text}")
    return {path: use for path, use in sorted(found.items()) if use.files}


def is_installed(path: str) -> bool:
    return source.file_of(library_of(path)) is not None


def library_of(path: str) -> str:
    name = re.split(r"[._]", path.lstrip("$(").lower())[0]
    return "unsloth_zoo" if path.startswith("unsloth_zoo.") else name


def version_of(library: str) -> str:
    """As installed; the CPU build of vLLM has another name."""
    names = metadata.packages_distributions()[library]
    return f"{library} {min(map(metadata.version, names))}"


def found_at(path: str) -> list[source.Found]:
    """Where a library has it; of "(A|B).name" there may be two."""
    owners, _, rest = path.removeprefix("(").partition(")") if path[0] == "(" else (path, "", "")
    return [found for each in owners.split("|") if (found := source.resolve(each + rest))]


def is_mentioned(modules: list[str], name: str) -> bool:
    return any(source.mentions(module, name) for module in modules)


def readers_of(variable: str) -> list[str]:
    """The modules of the installed libraries that read a variable, but for lists of all of them."""
    top = library_of(f"${variable}")
    tops = [top, "unsloth_zoo"] if top == "unsloth" else [top]
    read = re.compile(rf"envs\.{variable}\b|[\"']{variable}[\"']")
    modules = [module for library in tops for module in source.modules_of(library)]
    found = [m for m in modules if variable in source.text_of(m) and read.search(source.text_of(m))]
    found = [m for m in found if not re.search(r"test|bench|usage_lib|collect_env|\.envs$", m)]
    return found or [m for m in modules if source.mentions(m, variable)]


def parameters_of(path: str) -> list[source.Parameter] | None:
    listed = [source.parameters(found) for found in found_at(path)]
    if None in listed or not listed:
        return None
    return list(dict.fromkeys(each for known in listed for each in known or ()))


def call_of(path: str, use: Use, before: str | None = None) -> str:
    """How it is called, by its parameters' names: "lora_request, priority=, ..."; all of them where
    we take its place. These are an installed library's unless they are those of `before`."""
    known = parameters_of(path) if before is None else None
    if use.is_replaced:
        listed = [f"{p.name}=" if p.may_be_left_out else p.name for p in known or ()]
        return ", ".join(listed) if before is None else before
    if use.positional is None:
        return ""
    names = ["_"] * use.positional
    if known is not None:
        names = [each.name for each in known if each.by_position][: use.positional]
    elif before is not None:
        names = before.split(", ")[: use.positional]
    keywords = [f"{name}=" for name in sorted(use.keywords)]
    return ", ".join([*names, *keywords, *(["..."] if use.is_open else [])])


def problem(path: str, use: Use, entry: dict[str, Any]) -> str | None:
    """What the installed libraries lack of it; None where nothing does."""
    if path.startswith("$"):
        is_read = is_mentioned(entry["read in"], path[1:])
        return None if is_read else f"not read in {' or '.join(entry['read in']) or 'it'}"
    if ":" in path:
        modules, _, name = path.rpartition(":")
        return None if is_mentioned(modules.split("|"), name) else "not there"
    if not found_at(path):
        if any(found_at(other) for other in use.either):
            return None
        return "not there"
    if entry.get("call", "") != (call := call_of(path, use)):
        return f"its parameters are other ones: {call or 'none'}, and not {entry.get('call')}"
    known = parameters_of(path)
    return None if known is None or use.positional is None else refused(path, known, use)


def refused(path: str, known: list[source.Parameter], use: Use) -> str | None:
    """What of a call its parameters do not take."""
    names = {each.name for each in known}
    by_position = [each.name for each in known if each.by_position]
    takes_more = any(name.startswith("*") and not name.startswith("**") for name in by_position)
    if (use.positional or 0) > len(by_position) and not takes_more:
        return f"takes {len(by_position)} arguments by position, gets {use.positional}"
    if any(name.startswith("**") for name in names):
        names |= {n for n in use.keywords if is_forwarded(path, n)}
    if unknown := use.keywords - names:
        return f"takes no {', '.join(sorted(unknown))}"
    given = use.keywords | set(by_position[: use.positional])
    lacking = [each.name for each in known if each.is_required and each.name not in given]
    return f"needs {', '.join(lacking)}" if lacking and not use.is_open else None


def is_forwarded(path: str, keyword: str) -> bool:
    """Whether what a function does with its **keywords knows one of them."""
    target = FORWARDED.get(path)
    if target is None:
        return any(source.mentions(found.module, keyword) for found in found_at(path))
    known = parameters_of(target)
    return source.mentions(target, keyword) if known is None else keyword in {p.name for p in known}


def listed() -> dict[str, Any]:
    return json.loads(LIST.read_text()) if LIST.exists() else {}


def entry_of(path: str, use: Use, before: dict[str, Any], asks: bool = False) -> dict[str, Any]:
    """Of the list; `asks` an installed library for the names of its parameters."""
    entry: dict[str, Any] = {"by": sorted(use.files)}
    asks = asks and is_installed(path)
    if call := call_of(path, use, None if asks else before.get("call", "")):
        entry["call"] = call
    if path.startswith("$"):
        entry["read in"] = before.get("read in", [])
    if use.either:
        entry["or"] = sorted(use.either)
    return entry


def write() -> None:
    before = listed()
    entries = {
        path: entry_of(path, use, before.get(path, {}), asks=True)
        for path, use in uses().items()
        if not path.startswith(UNKNOWN)
    }
    for path, entry in entries.items():
        if path.startswith("$") and not is_mentioned(entry["read in"], path[1:]):
            entry["read in"] = sorted([*entry["read in"], *readers_of(path[1:])[:3]])
    lines = [f"{json.dumps(path)}: {json.dumps(entry)}" for path, entry in entries.items()]
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def unlisted() -> list[str]:
    """Where the code and the list differ, one line each."""
    found, known = uses(), listed()
    lines = [f"{path}: {', '.join(found[path].files)} uses it" for path in found.keys() - known.keys()]
    lines += [f"{path}: nothing uses it" for path in known.keys() - found.keys()]
    for path in found.keys() & known.keys():
        entry = known[path]
        if entry != (now := entry_of(path, found[path], entry)):
            lines.append(f"{path}: it is {json.dumps(now)}")
    return sorted(lines)


def problems() -> list[str]:
    """What of the list the installed versions lack, one line each."""
    found, lines = uses(), []
    for path, entry in listed().items():
        use, library = found.get(path, Use()), library_of(path)
        if source.file_of(library) is None:
            if library not in NOT_ON_A_CPU:
                lines.append(f"{path}: {library} is not installed")
        elif reason := problem(path, use, entry):
            lines.append(f"{path}: {version_of(library)}: {reason} ({', '.join(entry['by'])})")
    return lines


if __name__ == "__main__":
    if "--check" not in sys.argv:
        write()
    found = unlisted() + problems()
    print("\n".join(found) or f"{len(listed())} interfaces are as {LIST.name} has them")
    sys.exit(bool(found))
