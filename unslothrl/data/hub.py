"""Data sets on the Hugging Face hub."""

import contextlib
import re
import urllib.parse
from collections.abc import Iterator

from unslothrl.data.rows import Rows
from unslothrl.errors import UserError
from unslothrl.system.machine import endpoint, hub_answers, is_offline
from unslothrl.text import redacted

ADDRESS = re.compile(r"https?://(?:www\.)?huggingface\.co/(?:datasets/)?([\w.-]+/[\w.-]+)")


def load(name: str, config: str | None, known: str | None) -> dict[str, Rows]:
    """Split name -> rows: the data set's own files, kept on disk by the `datasets` library and read
    row by row. `known` is the name that it has in `named`. UserError."""
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    try:
        with without_waiting():
            try:
                splits = load_dataset(name, config)
            except ValueError as error:  # several configurations, like openai/gsm8k
                if config is not None or "Config name is missing" not in str(error):
                    raise
                splits = load_dataset(name, "main")
    except Exception as error:  # of HTTP, of sockets, of the hub's own checks, of others' files
        what, instead = (f"{known}: {name}", f"{known}=FILE") if known else (name, "FILE")
        raise UserError(
            f"dataset {what}: not a local file, and could not be loaded from the hub "
            f"({reason_of(error)}): check the name and the network, or give {instead}.jsonl"
        ) from None
    return {str(split): rows for split, rows in splits.items()}


def reason_of(error: Exception) -> str:
    """Why the hub gave nothing, in one line; the libraries say of a hub that does not answer only
    which of their modes they are in."""
    text = redacted(str(error), guess=True)
    said = (text.strip().splitlines() or [type(error).__name__])[0]
    if not re.search("offline ?mode", said, re.IGNORECASE):
        return said
    if is_offline():
        return "HF_HUB_OFFLINE is set"
    return f"no connection to {urllib.parse.urlsplit(endpoint()).hostname}"


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Where the hub does not answer, its libraries look into their caches alone, instead of trying
    for half a minute."""
    import datasets.config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not any(before) and not hub_answers():
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
