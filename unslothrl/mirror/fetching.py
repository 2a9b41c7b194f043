"""Where a mirror lies, on any file system of fsspec's, and runs fetched from one.

A URL is kept in config.toml, run.json and trackers, and printed: one that holds a password, key or
token is refused, and no message repeats it. What lies in a mirror may be of anybody: links, hidden
files, names that lead elsewhere and Python files, which a config could name, are left out.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unslothrl.checkpoints.store import SUMS
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, staged, write_whole
from unslothrl.text import for_terminal, one_line
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import CHECKPOINTS, CONFIG, ORIGIN, RUN_NAME

NONE = "none"  # what `--mirror` is to end the mirroring of a resumed run
LOCAL = ("file", "local", "memory")
WITH_USERS = ("sftp", "ssh", "ftp", "smb")  # whose user names are no secrets
STORES = ("s3", "s3a", "gs", "gcs", "hf", "memory", "abfs", "az", "adl", "oss", "oci")  # of objects
CREDENTIALS = (
    "credentials come from the environment, e.g. AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS,"
    " HF_TOKEN, or FSSPEC_<PROTOCOL>_PASSWORD"
)
OWN, STATE = ".mirror", "sent.json"  # in the run's folder: what has been sent
CODE = (".py", ".pyc", ".so")


def is_url(text: str | None) -> bool:
    """Whether a run or mirror is away: it has to be fetched."""
    return text is not None and "://" in text


def is_in(chosen: str, mirror: str | None) -> bool:
    """Whether a folder, or a URL, lies in a mirror."""
    if mirror is None or is_url(mirror):
        return mirror is not None and chosen.rpartition("/")[0] == mirror
    return Path(chosen).resolve().parent == Path(mirror).resolve()


def scheme(url: str) -> str:
    """ "file" for a folder."""
    return url.partition("://")[0].lower() if is_url(url) else "file"


def canonical(option: str, text: str) -> str:
    """A URL without a slash at its end, a folder by its whole name. UserError for credentials."""
    if not is_url(text):
        return str(expanded(text).absolute())
    if "::" in text or has_credentials(text):
        raise UserError(
            f"{option} {scheme(text)}://...: a URL such as s3://bucket/runs is expected, without a "
            f"password, key or token, which would be kept in files and shown: {CREDENTIALS}"
        )
    return text.rstrip("/")


def has_credentials(url: str) -> bool:
    """Whether there is a user where it may be a key, a password, or more than a path."""
    host, _, _ = url.partition("://")[2].partition("/")
    user, _, place = host.rpartition("@")
    is_secret = ":" in user or (user != "" and scheme(url) not in WITH_USERS)
    is_odd = re.fullmatch(r"[^:]*(:\d+)?", place) is None or re.search("[?#]", url) is not None
    return scheme(url) not in LOCAL and (is_secret or is_odd)


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


@contextmanager
def reaching(option: str, url: str) -> Iterator[None]:
    """Inside it an error of a file system's library is a UserError without credentials."""
    try:
        yield
    except Exception as error:
        why = f"cannot be reached ({said(error)}): check it; {CREDENTIALS}"
        raise UserError(f"{option} {url} {why}") from None


class Target:
    """A folder on a file system of fsspec's; names are relative, with slashes. Methods raise
    whatever the file system raises.

    A file there has all of its content or the one before, whenever a copy is cut short: an object
    store shows an object when all of it has arrived, elsewhere a file is copied under a temporary
    name and renamed.
    """

    def __init__(self, fs: Any, root: str, url: str):
        self.fs, self.root, self.url = fs, root.rstrip("/"), url

    @classmethod
    def opened(cls, option: str, url: str) -> "Target":
        """UserError where its package is missing or its address is wrong."""
        import fsspec

        with reaching(option, url):
            fs, root = fsspec.core.url_to_fs(url)
        return cls(fs, root, url)

    def sizes(self) -> dict[str, int]:
        """Every file of a run, its name -> bytes; {} where there is no such folder."""
        self.fs.invalidate_cache()
        found = self.fs.find(self.root, detail=True)
        files = {path[len(self.root) + 1 :]: info for path, info in found.items()}
        return {
            name: info["size"]
            for name, info in files.items()
            if info["type"] == "file" and is_name(name)
        }

    def read(self, name: str) -> bytes:
        """A small file, b"" if there is none."""
        path = f"{self.root}/{name}"
        return self.fs.cat_file(path) if self.fs.exists(path) else b""

    def put(self, local: Path, name: str) -> None:
        path = f"{self.root}/{name}"
        if scheme(self.url) in STORES:
            self.fs.put_file(str(local), path)
            return
        parent, _, base = path.rpartition("/")
        self.fs.makedirs(parent, exist_ok=True)
        self.fs.put_file(str(local), f"{parent}/.{base}.part")
        self.fs.mv(f"{parent}/.{base}.part", path)

    def remove(self, name: str) -> None:
        """A file, or a folder with what is in it."""
        path = f"{self.root}/{name}"
        if self.fs.exists(path):
            self.fs.rm(path, recursive=True)


def is_name(name: str) -> bool:
    """Whether a run's file may be called that: no part of it is hidden or leads elsewhere."""
    parts = name.split("/")
    return name.isprintable() and "\\" not in name and not any(p.startswith(".") for p in parts)


def write_state(folder: Path, url: str, sent: Mapping[str, list[int]]) -> None:
    """What has been sent to a target, for the next process: name -> size, mtime in ns."""
    (folder / OWN).mkdir(exist_ok=True)
    write_whole(folder / OWN / STATE, json.dumps({"target": url, "sent": sent}).encode())


def stat_of(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def fetch(url: str, output_dir: str, note: Callable[[str], None] = print) -> Path:
    """Copies a run into `output_dir`, whole or not at all. -> its folder. UserError."""
    name = url.rpartition("/")[2]
    folder = expanded(output_dir) / name
    target = Target.opened("resume", url)
    with reaching("resume", url):
        files = to_fetch(target.sizes())
    if CONFIG not in files or not RUN_NAME.fullmatch(name):
        raise UserError(
            f"resume must be a run's folder, got {url} (it has no {CONFIG}): set --resume "
            "URL/<run_name>"
        )
    if exists(str(folder)):
        raise UserError(
            f"resume {url}: {folder} is there already: continue that with --resume {folder}, or "
            "set another --output_dir"
        )
    megabytes = sum(files.values()) / 1e6
    note(for_terminal(f"fetching {url}: {len(files)} files, {megabytes:,.1f} MB"))
    with staged(folder) as temporary:
        for each in files:
            (temporary / each).parent.mkdir(parents=True, exist_ok=True)
            with reaching("resume", url):
                target.fs.get_file(f"{target.root}/{each}", str(temporary / each))
        sent = (each for each in files if not each.startswith(f"{CHECKPOINTS}/"))
        write_state(temporary, url, {each: stat_of(temporary / each) for each in sent})
    return folder


def to_fetch(files: Mapping[str, int]) -> dict[str, int]:
    """Without code, and without checkpoints that had not arrived whole."""
    whole = {name.removesuffix(f"/{SUMS}") for name in files if name.endswith(f"/{SUMS}")}
    return {
        name: size
        for name, size in files.items()
        if not name.lower().endswith(CODE)
        and (not name.startswith(f"{CHECKPOINTS}/step_") or name.rpartition("/")[0] in whole)
    }


def newest(mirror: str, run_name: str | None, recipe: Mapping[str, Any]) -> str | None:
    """The URL of the run in a mirror that `--resume auto` means: that of `run_name`, else the
    newest that was begun with the same options; None without one."""
    target = Target.opened("mirror", mirror)
    with reaching("mirror", mirror):
        if run_name is not None:
            is_there = target.fs.exists(f"{target.root}/{run_name}/{CONFIG}")
            return f"{mirror}/{run_name}" if is_there else None
        paths = target.fs.ls(target.root, detail=False) if target.fs.exists(target.root) else []
        names = [path.rstrip("/").rpartition("/")[2] for path in paths]
        contents = {name: target.read(f"{name}/{ORIGIN}") for name in filter(is_name, names)}
    runs = {name: origin.parsed(content) for name, content in contents.items() if content}
    same = [(each.started, name) for name, each in runs.items() if each.recipe == recipe]
    return f"{mirror}/{max(same)[1]}" if same else None
