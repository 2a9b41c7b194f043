"""What is exported goes to the hub."""

from pathlib import Path
from typing import Any, NoReturn

from unslothrl.errors import RunError, UserError

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def check(name: str) -> None:
    """UserError where nothing can be pushed to `name`: it is no name, there is no token, or the
    hub does not answer to it."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        name = name[:60]
        raise UserError(f"push {name!r}: not a name of the hub's: give user/name") from None
    if name.count("/") != 1:
        raise UserError(f"push {name}: give user/name")
    if not get_token():
        raise UserError(f"push {name}: no token of the hub's: {LOG_IN}")
    try:
        api().whoami()
    except Exception as error:
        refuse(name, error, before=True)


def push(folder: Path, name: str, is_private: bool) -> str:
    """Uploads all files of a folder in one commit. -> the address. RunError."""
    try:
        created = api().create_repo(name, private=is_private, exist_ok=True)
        api().upload_folder(
            repo_id=name, folder_path=folder, commit_message=f"Upload {folder.name} with unslothrl"
        )
    except Exception as error:  # of HTTP, of sockets, of the hub's own checks
        refuse(name, error, before=False)
    return str(created)


def api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="unslothrl")


def refuse(name: str, error: Exception, before: bool) -> NoReturn:
    """In a line, without what a server's page may hold."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = " ".join(str(error).split()) or type(error).__name__
    advice = LOG_IN if status in (401, 403) else "check the network and the name"
    kind: type[Exception] = UserError if before else RunError
    raise kind(f"push {name}: not uploaded ({reason:.160}): {advice}") from None
