"""Text for people and for disk: values shortened for a message, without what would steer a
terminal; secrets taken out of what is kept or passed on; JSON that is nested too deeply.

What is a secret: tokens and keys in the forms that services give them, the user and password of a
URL, what stands behind a name such as `api_key`, private keys, and the values of environment
variables with such a name. `HIDDEN` stands in their place.
"""

import functools
import json
import os
import re
import shlex
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any


def shown(value: Any, most: int = 60) -> str:
    """A value of any type and size for a message: printable and short."""
    try:
        text = ascii(value) if not isinstance(value, str) else repr(value[: most + 1])
    except (RecursionError, ValueError):
        return f"a large {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


def plain(value: Any, most: int = 100) -> str:
    """As `shown`, without quotes: as it is written on a command line."""
    return shown(value, most)[1:-1] if isinstance(value, str) else shown(value, most)


def printable(text: str, kept: str = "") -> str:
    """`text` with "?" for control characters but `kept`: a terminal would obey them."""
    return "".join(c if c.isprintable() or c in kept else "?" for c in text)


def for_terminal(text: str, kept: str = "") -> str:
    """`printable`, and without secrets: output is copied into files and bug reports."""
    return printable(redacted(text), kept)


def one_line(error: object, most: int = 300) -> str:
    """What an error of another library says, without secrets or what would steer a terminal."""
    text = for_terminal(" ".join(redacted(str(error), guess=True).split()))
    return text[:most] or type(error).__name__


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], are_numbers: bool = False) -> list[str]:
    """A line for each row of a table, its cells below those of the row before; numbers, all but
    the first of each row, to the right."""
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    put = str.rjust if are_numbers else str.ljust
    return ["  ".join([row[0].ljust(first), *map(put, row[1:], widths)]).rstrip() for row in rows]


HIDDEN = "<hidden>"
LEAST = 6  # characters of a variable's value: a shorter one would be found in every text

NAME = (  # how the name of a secret ends; `max_new_tokens` and `token_ids` are none
    r"(?:token|secret|passw(?:or)?d|passphrase|[_.-]pwd|api[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|(?:secret|private|account|signing|encryption)[_-]?key|credentials?|signature|authorization"
    r"|cookie|connection[_-]?string|webhook(?:[_-]?url)?)"
)
SHORT = r"(?:key|pass|pwd|pw|pat|auth|sig|dsn|jwt)"  # such names when they stand alone
PURPOSE = r"(?:[_.-]?\d+|[_.-](?:read|write|ro|rw|prod|dev|test|staging|old|new|main|org))"
SECRET_NAME = re.compile(rf"(?i)(?:{NAME}s?|(?:^|[_.-]){SHORT}){PURPOSE}*$")
NO_NAME = ("PWD", "OLDPWD")  # of a secret: a shell's folders

PRIVATE_KEY = re.compile(  # also one of which the beginning or the end has been cut off
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
    r"|\Z)|\A(?:(?!-----BEGIN ).)*?-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----",
    re.DOTALL,
)
URLS = (
    re.compile(r"(?i)\b((?:https?|wss?)://)[^\s\"'<>/?#]+(?=@)"),  # a user alone may be a token
    re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,15}://)[^\s\"'<>/?#:@]*:[^\s\"'<>/?#]*(?=@)"),
    re.compile(  # also with \/ for /, as some write JSON, or without a scheme
        r"(?i)((?:\\/\\/|(?<![\w/:.-])//))[^\s\"'<>/?#:@\\]*:[^\s\"'<>/?#\\]*(?=@)"
    ),
    re.compile(rf"(?i)((?:[?&#]|;(?=[\w.-]+=))[\w.-]{{0,40}}(?:{NAME}|(?<![a-z0-9]){SHORT})=)"
               r"[^\s\"'<>&#;]+"),
    re.compile(r"(?i)\b(https://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks|"
               r"api\.telegram\.org)/)[^\s\"'<>]+"),
)  # fmt: skip
TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:hf|api_org)_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|wandb_v\d+_[A-Za-z0-9_-]{16,}"
    r"|sk-[A-Za-z0-9_-]{16,}|[spr]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Z0-9])"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(?:nvapi-|rpa_|r8_|gsk_|xai-|pplx-|npm_|dckr_pat_|glsa_|pypi-|tskey-|dop_v1_)"
    r"[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}"
    r"|(?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"  # JSON web tokens
    r")"
)
# What only looks like a secret, and in the options of a run may be something else.
HEX = re.compile(  # W&B's older keys; the hub's folders and files have such names too
    r"(?<![A-Za-z0-9])(?<!snapshots/)(?<!blobs/)[0-9a-fA-F]{40}(?![A-Za-z0-9])"
)
BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)(?=[A-Za-z._~+/-]*[0-9+/=])[\w.~+/=-]{8,}")
QUOTED = r"\\\"[^\"\\\n]*(?:\\\")?|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?"
BARE = r"[^\s\"'<>,;&)\]}]+"
NAMED = re.compile(
    rf"(?i)(?P<name>{NAME}(?:\\?[\"'])?[\])]?\s{{0,9}}(?:=>|:=|==?|:)\s{{0,9}}"
    rf"|--?[\w-]{{0,40}}{NAME}\s{{1,9}}(?!-))"
    rf"(?P<value>(?:(?:basic|bearer|token|digest)\s{{1,9}})?(?:{QUOTED}|{BARE}))"
)
WITH_SLASH = re.compile(r"(?i)\b(https?://)[^\s\"'<>@:]{0,200}:[^\s\"'<>@]{1,200}(?=@)")
OF_CURL = re.compile(  # curl -u me:... or 'me:...'
    r"(\bcurl\b[^\n|;&]{0,400}?\s(?:-u\s*|--user[\s=]\s*)(?P<quote>[\"'])?[^\s:\"']{0,80}:)"
    r"(?(quote)[^\"'\n]+|[^\s\"']+)"
)
NUMBER = re.compile(r"-?\d{1,5}(?:\.\d+)?(?:e[+-]?\d+)?|true|false|null|none", re.IGNORECASE)


def redacted(text: str, guess: bool = False) -> str:
    """`text` without secrets; `guess`: nor what only looks like one, which in the options of a run
    may be something else: what a name such as `password` is given, 40 hexadecimal digits."""
    for value in values_of(tuple(os.environ.items())):
        text = text.replace(value, HIDDEN)
    text = PRIVATE_KEY.sub(HIDDEN, text)
    for url in URLS:
        text = url.sub(rf"\1{HIDDEN}", text)
    if guess:
        text = WITH_SLASH.sub(rf"\1{HIDDEN}", text)
        text = BEARER.sub(rf"\1{HIDDEN}", text)
        text = OF_CURL.sub(rf"\1{HIDDEN}", text)
        text = NAMED.sub(hide_value, text)
        text = HEX.sub(HIDDEN, text)
    return TOKENS.sub(HIDDEN, text)


def redacted_values(value: Any) -> Any:
    """A value of JSON's or TOML's types, with `redacted` on each text in it."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: redacted_values(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_secret(redacted_values(each)) for each in value)
    return value


def without_secret(value: Any) -> Any:
    """KEY=VALUE, as `--environment_options` has it, without the value of a secret."""
    name, _, given = value.partition("=") if isinstance(value, str) else ("", "", "")
    is_secret = bool(given) and not NUMBER.fullmatch(given) and is_secret_name(name)
    return f"{name}={HIDDEN}" if is_secret else value


def is_hidden(value: Any) -> bool:
    """Whether something has been taken out of a value."""
    if isinstance(value, list | tuple):
        return any(map(is_hidden, value))
    return isinstance(value, str) and HIDDEN in value


def is_secret_name(name: str) -> bool:
    """Whether what has this name is a secret: HF_TOKEN, api-key; not max_new_tokens."""
    return name not in NO_NAME and SECRET_NAME.search(name) is not None


def hide_value(match: re.Match[str]) -> str:
    """The match without its value, which keeps its quotes; a short number is no secret."""
    value = match["value"]
    opening = re.match(r"\\?[\"']?", value)[0]  # type: ignore[index]  # it matches ""
    has_end = opening and value.endswith(opening) and len(value) >= 2 * len(opening)
    closing = opening if has_end else ""
    inner = value[len(opening) : len(value) - len(closing)]
    if not inner or NUMBER.fullmatch(inner):
        return match[0]
    return f"{match['name']}{opening}{HIDDEN}{closing}"


@functools.lru_cache(maxsize=4)
def values_of(environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """What must not be found in a text: the values of variables whose names are secrets', and the
    passwords in all of them, in every form, the longest first."""
    secrets = set()
    for name, value in environment:
        if is_secret_name(name):
            secrets.add(value)
        with_password = re.search(r"://[^\s/:@]*:([^\s/]+)@", value)
        if with_password:
            secrets |= {with_password[1], urllib.parse.unquote(with_password[1])}
    written = {
        form
        for secret in secrets
        for each in (secret, secret.strip())
        if len(each) >= LEAST and HIDDEN not in each
        for form in forms(each)
    }
    return tuple(sorted(written, key=lambda each: (-len(each), each)))


def forms(secret: str) -> set[str]:
    """As it is, and as JSON, TOML, Python, a URL and a shell write it."""
    quoted = shlex.quote(secret)
    in_url = urllib.parse.quote(secret, safe="")
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        urllib.parse.quote(secret),
        in_url,
        re.sub("%..", lambda match: match[0].lower(), in_url),
        urllib.parse.quote_plus(secret),
        quoted[1:-1] if quoted.startswith("'") else quoted,
    }


MOST_NESTED = 100  # levels; what walks through a value may take several calls for each


def json_or_text(text: str) -> Any:
    """What a text is as JSON; the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def is_too_deep(text: str, value: Any) -> bool:
    """Whether `value`, which is `text` as JSON, has more than `MOST_NESTED` levels."""
    if text.count("[") + text.count("{") <= MOST_NESTED:
        return False
    level, depth = [value], 0
    while level and depth <= MOST_NESTED:
        depth += 1
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
    return depth > MOST_NESTED
