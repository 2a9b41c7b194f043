"""The address of a mirror: a folder, or a URL such as s3://bucket/runs, without credentials.

A URL is kept in config.toml, run.json and trackers, and printed. So one that holds a password, key
or token is refused, with the rest of it alone in the message.
"""

import re
import shlex
import sys

from unslothrl.errors import UserError
from unslothrl.files import expanded
from unslothrl.redaction import redacted

NONE = "none"  # what `--mirror` is to end the mirroring of a resumed run
LOCAL = ("file", "local", "memory")
WITH_USERS = ("sftp", "ssh", "ftp", "smb")  # whose user names are no secrets
PASSWORD = re.compile(r"[^/@]*:(?!\d+(/|$))[^@]*@")  # also one with a slash; host:22/ has none
URLS = re.compile(r"\w+://\S+")
HINTS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "HF_TOKEN, or `hf auth login`",
}
SAME = {"s3a": "s3", "gcs": "gs", "ssh": "sftp"}  # names of the same file system
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "sftp": "paramiko", "hf": "huggingface_hub",
            "abfs": "adlfs", "az": "adlfs", "smb": "smbprotocol", "webdav": "webdav4",
            "oss": "ossfs", "oci": "ocifs"}  # fmt: skip
IN_STEP = ("s3fs", "gcsfs")  # each version of these wants fsspec of the same version


def is_url(text: str) -> bool:
    return "://" in text


def canonical(option: str, text: str) -> str:
    """A URL without a slash at its end, a folder by its whole name. UserError for what is no
    address, and for one with credentials in it."""
    if "\0" in text or not text.strip():
        raise UserError(f"{option} must be a folder or a URL, got {text[:100]!r}")
    if not is_url(text):
        return str(expanded(text).absolute())
    if "::" in text:
        raise UserError(f"{option} {without_credentials(text)}: one file system inside another "
                        "is not supported: set a URL such as s3://bucket/runs")  # fmt: skip
    if has_credentials(text):
        raise UserError(
            f"{option} {without_credentials(text)}: a password, key or token in a URL would be "
            f"kept in files and shown in lists of processes: leave it out, credentials come from "
            f"the environment ({hint(text)})"
        )
    return text.rstrip("/")


def scheme(url: str) -> str:
    """ "file" for a folder."""
    found = url.partition("://")[0].lower() if is_url(url) else "file"
    return SAME.get(found, found)


def has_credentials(url: str) -> bool:
    kind, _, rest = url.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if kind in LOCAL:
        return False
    named = bool(at) and (":" in user or kind not in WITH_USERS)
    return named or PASSWORD.match(rest) is not None or "?" in rest or "#" in rest


def without_credentials(url: str) -> str:
    """Scheme, host and path."""
    kind, separator, rest = url.partition("://")
    if not separator or kind in LOCAL or not has_credentials(url):
        return url
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    in_front = "@" in rest.partition("/")[0] or PASSWORD.match(rest)
    return f"{kind}://{rest.rpartition('@')[2] if in_front else rest}"


def hint(url: str) -> str:
    """Where the credentials of a file system belong; fsspec reads the last for every one."""
    kind = scheme(url)
    return HINTS.get(kind, f"FSSPEC_{kind.upper()}_PASSWORD")


def install(url: str, fsspec_version: str) -> str:
    """The command that installs what a URL's file system needs."""
    package = PACKAGES.get(scheme(url), scheme(url))
    if package in IN_STEP:
        package += f"=={fsspec_version}"
    return f"{shlex.quote(sys.executable)} -m pip install {package}"


def said(error: BaseException) -> str:
    """What an exception says in a line, without the credentials that a URL in it may have."""
    text = " ".join(redacted(str(error), guess=True).split())
    text = URLS.sub(lambda match: without_credentials(match[0]), text)
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__
