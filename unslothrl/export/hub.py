"""What is exported goes to the hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unslothrl.errors import RunError, UserError

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def check(name: str) -> None:
    """UserError where nothing can be pushed to `name`: it is no name, there is no token, or the
    hub does not answer to it."""
    if name.count("/") != 1:
        raise UserError(f"push {name!r:.60}: give user/name")
    with asking(name, UserError):
        api().whoami()


def push(folder: Path, name: str, is_private: bool) -> str:
    """Uploads all files of a folder in one commit. -> the address. RunError."""
    with asking(name, RunError):
        created = api().create_repo(name, private=is_private, exist_ok=True)
        api().upload_folder(
            repo_id=name, folder_path=folder, commit_message=f"Upload {folder.name} with unslothrl"
        )
    return str(created)


def api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="unslothrl")


@contextmanager
def asking(name: str, kind: type[Exception]) -> Iterator[None]:
    """Inside it every error is of one line, without what a server's page may hold."""
    try:
        yield
    except Exception as error:  # of HTTP, of sockets, of the hub's own checks
        reason = " ".join(str(error).split()) or type(error).__name__
        raise kind(
            f"push {name}: not uploaded ({reason:.160}): {LOG_IN}, and check the network and the "
            "name"
        ) from None
