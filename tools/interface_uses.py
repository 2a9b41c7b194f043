"""What the package uses of vLLM, Unsloth, bitsandbytes, Ray and TRL, as its code says.

A type checker sees none of it: these objects reach us as Any. So the code is read: every attribute
(also by getattr, hasattr and setattr), call, override, import, environment variable and module's
name, of every object that is not known to be ours. OWNERS says whose a receiver is.
"""

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import library_source as source

ROOT = Path(__file__).parents[1]
PACKAGE = "unslothrl"
LIBRARIES = {"vllm", "unsloth", "unsloth_zoo", "bitsandbytes", "ray", "trl"}
HUGGING_FACE = {"transformers", "peft", "accelerate"}
PROMISED = (*HUGGING_FACE, "ray.actor")  # of these only what begins with an underscore is listed
FOLDERS = ("backends", "cluster", "engines", "offline")  # whose Any values are looked at
FILES = (
    "export/merging.py",
    "weights/published.py",
    "weights/quantise.py",
)
VARIABLE = re.compile(r"(VLLM|UNSLOTH|RAY|BNB|TRL)_[A-Z0-9_]+")
IMPORT = re.compile(rf"^ *(import|from) ({'|'.join(LIBRARIES)})\b", re.MULTILINE)
MODULE = re.compile(rf"({'|'.join(LIBRARIES)})(\.\w+)+")

# Owner -> the names under which its objects reach us: variables, attributes, "NAME()" for what a
# call returns, "NAME[]" for an element; "FILE:NAME" holds in one file, "a.b" of a `b` of an `a`. An
# owner with "=" is a module or class itself, "(A|B)" is any of these, "" whatever is not listed.
OWNERS = {
    "": "begun ctx decoder() each entry error group info look lr_scheduler model() optimizer other"
    " options[] output_embeddings plan process published schedule stat() tables tokenizer view"
    " wrong backends/unsloth.py:output engines/canary.py:state engines/chunk.py:output"
    " offline/trainers.py:outputs cluster/node_watch.py:future cluster/starting.py:server",
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
    "vllm.outputs.RequestOutput": "engines/vllm_internals.py:output",
    "(vllm.outputs.RequestOutput|vllm.outputs.CompletionOutput)": "engines/vllm.py:output",
    "vllm.v1.core.sched.scheduler.Scheduler": "scheduler",
    "vllm.v1.engine.core.EngineCore": "engine_core.engine_core",
    "vllm.v1.engine.core_client.InprocClient": "engine_core",
    "vllm.v1.engine.llm_engine.LLMEngine": "llm_engine engines/vllm_internals.py:engine",
    "vllm.v1.engine.output_processor.OutputProcessor": "output_processor",
    "vllm.v1.engine.output_processor.RequestState": "engines/vllm_internals.py:state",
    "vllm.v1.executor.multiproc_executor.MultiprocExecutor": "executor model_executor",
    "vllm.v1.executor.multiproc_executor.WorkerProcHandle": "engines/vllm_split.py:worker",
    "vllm.v1.request.Request": "engines/vllm_internals.py:request",
    "=unsloth.models.loader.FastLanguageModel": "FastLanguageModel",
    "bitsandbytes.functional.QuantState": "engines/vllm_worker.py:state weights/published.py:state"
    " quant_state",
    "=(trl.SFTConfig|trl.DPOConfig|trl.RewardConfig)": "CONFIGS[]",
    "=transformers.AutoModelForCausalLM": "backends/peft.py:kind",
    "transformers.Trainer": "trainer",
    "transformers.modeling_utils.PreTrainedModel": "backends/packing.py:model",
    "transformers": "accelerator args config control model plain saved state begun.state"
    " bfloat16() from_pretrained() module",
    "peft": "backends/readback.py:layer base_model get_base_model() owner peft_config[] score shape"
    " trained with_adapter wrapped projection self_attn layer layers[] weight",
}
# What a library sets on objects of others, and what it names in dicts: module -> names; "A|B" is
# either of two modules, "A.*" any of a package.
BNB = "vllm.model_executor.model_loader.bitsandbytes_loader|vllm_bnb_plugin.bitsandbytes_loader"
MENTIONED = {
    "accelerate.hooks": "_old_forward",
    "ray._private.node": "address_info[]",
    "ray._private.worker": "gcs_client",
    "transformers.configuration_utils": "_attn_implementation",
    "trl.trainer.*": "_total_train_tokens",
    "unsloth.models.llama": "vllm_engine paged_attention paged_attention_K paged_attention_V"
    " _unsloth_allow_packed_overlength",
    "unsloth_zoo.tiled_mlp": "_unsloth_forward",
    "vllm.config.model": "head_dtype processed_logprobs",
    "vllm.lora.model_manager": "lora_manager",
    BNB: "bnb_quant_state bnb_shard_offsets",
}
MENTIONED_BY = {name: module for module, names in MENTIONED.items() for name in names.split()}
# Strings of ours that are names in a library: our file and constant -> where they are.
CONSTANTS = {
    ("offline/training.py", "FIGURES"): "trl.trainer.*|transformers.trainer",
    ("backends/patches.py", "PROJECTIONS"): "unsloth.models.llama",
}
OUR_STRINGS = {"skipped_updates"}
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
        self.followed: set[str] = set()  # names whose values are looked for
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
            named = [each for each in call.args if not isinstance(each, ast.Starred)]
            use.positional = max(use.positional or 0, len(named))
            use.is_open |= len(named) < len(call.args)
            for keyword in call.keywords:
                use.is_open |= keyword.arg is None
                use.keywords |= {keyword.arg} if keyword.arg else self.strings_in(keyword.value)

    def visit(self, node: ast.AST, scope: Scope, parent: ast.AST | None) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            outer, self.within = self.within, node
            scope = self.scope_of(node, scope)
            for child in ast.iter_child_nodes(node):
                self.visit(child, scope, node)
            self.within = outer
            return
        if isinstance(node, ast.Attribute):
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
            owner: str = self.owner(node.func, scope) or ""
            if owner.startswith("=") and owner[1:].lstrip("(").partition(".")[0] in LIBRARIES:
                self.use(owner[1:], node)
        if name == "partial" and (owner := self.owner(node.args[0], scope) or "").startswith("="):
            self.use(owner[1:], ast.Call(node.args[0], node.args[1:], node.keywords))
        if name in ("getattr", "hasattr", "setattr") and len(node.args) > 1:
            names = self.strings_in(node.args[1])
            for each in names:
                self.attribute(node.args[0], each, scope, node, None, name == "setattr")
            if name == "hasattr" and len(names) > 1:
                paths = {f"{self.owner(node.args[0], scope)}.{each}" for each in names}
                for path in paths:
                    self.uses[path].either |= paths - {path}

    def attribute(
        self,
        value: ast.expr,
        name: str,
        scope: Scope,
        node: ast.expr,
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
        found = owner if owner is None or isinstance(target, ast.Name) else ""
        for name in stored_in(target):
            before = scope.get(name)
            scope[name] = before if found is None else before or found

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
        parts: list[ast.expr] = []
        if isinstance(node, ast.BoolOp):
            parts = node.values[-1:] if isinstance(node.op, ast.And) else node.values
        elif isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.GeneratorExp | ast.ListComp):
            parts = [node.elt]
        owners = (self.owner(part, scope) for part in parts)
        return max((owner for owner in owners if owner is not None), default=None)

    def owner_of_member(self, value: ast.expr, name: str, scope: Scope) -> str | None:
        owner = self.owner(value, scope)
        if owner is None:
            return self.named(name, "", last_name(value)) if name in ours()[1] else None
        path = f"{owner}.{name}" if owner.startswith("=") else ""
        return self.named(name, path, last_name(value))

    def owner_of_result(self, node: ast.Call, scope: Scope) -> str | None:
        name = last_name(node.func)
        if name == "getattr":
            value, names = node.args[0], self.strings_in(node.args[1])
            known = (self.owner_of_member(value, each, scope) for each in names)
            return max(filter(None, known), default=self.owner(value, scope) and "")
        if isinstance(node.func, ast.Name) and hasattr(builtins, name):
            return None if all(self.owner(each, scope) is None for each in node.args) else ""
        owner = self.owner(node.func, scope)
        if owner is None:
            return self.named(f"{name}()", "") if name in ours()[1] else None
        is_class = owner.startswith("=") and name[:1].isupper()
        return self.named(f"{name}()", owner[1:] if is_class else "")

    def strings_in(self, node: ast.expr | None) -> set[str]:
        """The strings that an expression may be: a tuple's elements, a dict's keys."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        return set().union(*map(self.strings_in, self.parts_of(node)))

    def parts_of(self, node: ast.expr | None) -> list[ast.expr | None]:
        if isinstance(node, ast.Tuple | ast.List):
            return [*node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return [value if key is None else key for key, value in pairs]
        if isinstance(node, ast.Starred | ast.DictComp):
            return [node.value if isinstance(node, ast.Starred) else node.key]
        if isinstance(node, ast.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, ast.Call) and last_name(node.func) in ("items", "keys"):
            return [node.func.value]  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and (found := self.function(last_name(node.func))):
            returned = (
                each.value for each in nodes_of(found.within) if isinstance(each, ast.Return)
            )
            return [ast.Constant(each) for value in returned for each in found.strings_in(value)]
        if isinstance(node, ast.Name) and node.id not in self.followed:
            self.followed.add(node.id)
            values = list(self.values_of(node.id))
            strings = set().union(*map(self.strings_in, values))
            self.followed.remove(node.id)
            return [ast.Constant(each) for each in sorted(strings)]
        return []

    def values_of(self, name: str) -> Iterator[ast.expr]:
        """What a name is bound to, looped over or given keys of, in this function or else in this
        file."""
        for node in nodes_of(self.within if name in stored_in(self.within) else self.tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Subscript) and last_name(target.value) == name:
                        yield target.slice
                    elif isinstance(target, ast.Name) and target.id == name:
                        yield node.value
            elif isinstance(node, ast.For | ast.comprehension) and name in stored_in(node.target):
                yield node.iter

    def function(self, name: str) -> "Reader | None":
        """The reader of a function of ours, of this file or another."""
        name = name.removesuffix("()")
        module = self.imported.get(name, "").removeprefix(f"{PACKAGE}.").rpartition(".")[0]
        file = module.replace(".", "/") + ".py"
        reader = Reader(file if file in trees() else self.file, defaultdict(Use))
        for node in nodes_of(reader.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                reader.within = node
                return reader
        return None

    # What our subclasses of a library's class, and the mixins of these, take from it.

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in nodes_of(self.tree) if isinstance(node, ast.ClassDef))

    def library_bases(self, node: ast.ClassDef) -> set[str]:
        owners = (self.owner(base, {}) or "" for base in node.bases)
        return {owner[1:] for owner in owners if owner}

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
        for kind in filter(None, map(source.resolve, bases)):
            found = None if name.startswith("__") else source.member(kind, name)
            path = found and f"{source.class_of(kind, found)}.{name}"
            if path and (not path.startswith(PROMISED) or name.startswith("_") or is_replaced):
                self.use(path, call, is_replaced)


def families(readers: list[Reader]) -> dict[str, set[str]]:
    """Our class -> the libraries' classes that it, or one that it is mixed into, extends."""
    nodes = [(reader, node) for reader in readers for node in reader.classes()]
    extended = {node.name: reader.library_bases(node) for reader, node in nodes}
    pairs = [(n.name, b) for _, n in nodes for b in map(last_name, n.bases) if b in extended]
    for _ in range(4):  # deeper than our classes are
        for name, base in pairs:
            extended[name] |= extended[base]
    mixed_into = {name: set(kinds) for name, kinds in extended.items()}
    for _ in range(4):
        for name, base in pairs:
            mixed_into[base] |= mixed_into[name]
    return mixed_into


def strings(file: str) -> Iterator[str]:
    """Of a file, without its docstrings."""
    documents = {id(node.value) for node in nodes_of(trees()[file]) if isinstance(node, ast.Expr)}
    for node in nodes_of(trees()[file]):
        if isinstance(node, ast.Constant) and id(node) not in documents:
            yield str(node.value)


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
        reader.visit(reader.tree, {}, None)
        for node in reader.classes():
            reader.inherit(node, extended[node.name])
    for file, whole in texts().items():
        named = VARIABLE.search(whole) or MODULE.search(whole) or is_read(file)
        for text in strings(file) if named else ():
            if VARIABLE.fullmatch(text):
                found[f"${text}"].files.add(file)
            elif MODULE.fullmatch(text):
                found[text].files.add(file)
            elif text in MENTIONED_BY and is_read(file):
                found[f"{MENTIONED_BY[text]}:{text}"].files.add(file)
    for (file, name), modules in CONSTANTS.items():
        reader = Reader(file, found)
        for text in set().union(*map(reader.strings_in, reader.values_of(name))) - OUR_STRINGS:
            reader.use(f"{modules}:{text}")
    return {path: use for path, use in sorted(found.items()) if use.files}
