"""Qwen3.5 in vLLM: layers of recurrent states (Gated DeltaNet) beside layers of attention."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from unslothrl.errors import UserError
from unslothrl.weights.base_parts import read

CLASS, MODULE = "Qwen3_5ForCausalLM", "vllm.model_executor.models.qwen3_5"
OF_IMAGES = "torchvision"


def is_hybrid(base: Path) -> bool:
    """Whether the checkpoint in a folder has layers that keep a state."""
    return "linear_attention" in (read(base, "config.json").get("layer_types") or ())


def register() -> None:
    """Before vLLM starts with such a model. UserError where this vLLM has none that serves text
    alone, as 0.26 does not."""
    from vllm import ModelRegistry

    if CLASS not in ModelRegistry.get_supported_archs():
        raise UserError("this vLLM does not serve Qwen3.5's text model: set --engine transformers")
    if importlib.util.find_spec(OF_IMAGES) is None:
        ModelRegistry.register_model(CLASS, class_without_images())


def class_without_images() -> type:
    """vLLM's class of the text model. Its file has that of the vision model too, which imports
    torchvision, of which PyPI has no build for CPUs."""
    importlib.import_module("transformers.models.auto.image_processing_auto")  # not with what comes
    names = ("", ".io", ".transforms", ".transforms.v2", ".transforms.v2.functional")
    absent = {f"{OF_IMAGES}{name}": Absent(f"{OF_IMAGES}{name}") for name in names}
    sys.modules.update(absent)
    try:
        return getattr(importlib.import_module(MODULE), CLASS)
    finally:
        for name in absent:
            del sys.modules[name]


class Absent(ModuleType):
    """A module from which anything can be imported, and nothing used."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")
