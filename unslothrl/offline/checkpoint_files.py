"""What transformers' Trainer will load of a checkpoint, looked at before it does.

It reads tensors and numbers from torch's files with `weights_only`, which builds no other objects
and so runs no code of the file's. Here the same is done first: a file that would not load is
damage, as one with a wrong checksum is.
"""

import pickle
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import TrainerState
from transformers.trainer_pt_utils import safe_globals

from unslothrl.checkpoints.store import Damaged
from unslothrl.offline.checkpoints import STATE, TRAINING_ARGS, names_in

OF_TORCH, SAFETENSORS, PICKLES = (".pt", ".pth"), ".safetensors", (".bin", ".pkl", ".pickle")
UNREADABLE = (
    pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError, ValueError, TypeError,
    KeyError, AttributeError, ImportError, IndexError, RecursionError, OverflowError, MemoryError,
)  # fmt: skip


def check(folder: Path) -> None:
    """Raises Damaged; OSError."""
    names = list(names_in(folder))
    if not any(name.endswith(SAFETENSORS) for name in names):
        raise Damaged("it has no weights")
    for name in names:
        suffix = Path(name).suffix
        if suffix in PICKLES and name != TRAINING_ARGS:  # which nothing reads
            raise Damaged(f"{name} is a pickle, which is not loaded")
        try:
            if suffix in OF_TORCH:
                check_torch(folder / name)
            elif suffix == SAFETENSORS:
                with safe_open(folder / name, "pt") as file:
                    file.keys()
            elif name == STATE:
                TrainerState.load_from_json(str(folder / name))
        except UNREADABLE as error:
            raise Damaged(f"{name} is not what a Trainer writes ({type(error).__name__})") from None


def check_torch(path: Path) -> None:
    with safe_globals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a pickle's version, where it is one
        found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise TypeError(type(found).__name__)
