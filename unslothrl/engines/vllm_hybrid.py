"""Qwen3.5 in vLLM: layers of recurrent states (Gated DeltaNet) beside layers of attention."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CLASS, WHOLE = "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"
MODULE = "vllm.model_executor.models.qwen3_5"
OF_IMAGES = "torchvision"


def register() -> None:
    """Before vLLM starts with such a model: its text model, where this vLLM does not find it."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    has_images = importlib.util.find_spec(OF_IMAGES) is not None
    if CLASS not in ModelRegistry.get_supported_archs() or not has_images:
        with contextlib.nullcontext() if has_images else without_images():
            ModelRegistry.register_model(CLASS, text_class())
        if CLASS not in MODELS_CONFIG_MAP:
            MODELS_CONFIG_MAP[CLASS] = MODELS_CONFIG_MAP[WHOLE]


def text_class() -> type:
    """vLLM's class of the text model; of 0.26, whose text model is only a part of that of images,
    with what the whole says of states and positions."""
    from vllm.model_executor.models.interfaces import IsHybrid, SupportsMRoPE

    module = importlib.import_module(MODULE)
    text, whole = getattr(module, CLASS), getattr(module, WHOLE)
    if getattr(text, "is_hybrid", False):
        return text
    states = {name: each for name, each in vars(whole).items() if name.startswith("get_mamba_")}
    positions = {"get_mrope_input_positions": positions_of_text}
    return type(CLASS, (text, IsHybrid, SupportsMRoPE), states | positions)


def positions_of_text(self: Any, ids: list[int], images: Any) -> tuple[Any, int]:
    """-> the same positions in time, height and width, and by how much they run ahead."""
    import torch

    return torch.arange(len(ids)).expand(3, -1), 0


@contextlib.contextmanager
def without_images() -> Iterator[None]:
    """vLLM's file of the text model has that of the vision model too, which imports torchvision, of
    which PyPI has no build for CPUs."""
    importlib.import_module("transformers.models.auto.image_processing_auto")  # not with what comes
    names = ("", ".io", ".transforms", ".transforms.v2", ".transforms.v2.functional")
    absent = {f"{OF_IMAGES}{name}": Absent(f"{OF_IMAGES}{name}") for name in names}
    sys.modules.update(absent)
    try:
        yield
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
