"""A page in one file, which needs no network: its own style and script inside, and its data.

Model output is hostile: in the page all text is escaped, and characters are made visible that would
hide, move or reverse others. The content security policy allows this script by its hash, and what
it loads itself; with trusted types that can be the steps beside the page alone, and no text can
become markup (browsers that know no trusted types ignore them).
"""

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unslothrl.tracking.report.steps import embedded

LONGEST_TEXT = 6000  # characters of a prompt or completion in the page itself
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)

POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; "
    "script-src 'sha256-{hash}' 'strict-dynamic' 'self' file:; "
    "require-trusted-types-for 'script'; trusted-types unslothrl-steps"
)

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head><body>
{body}
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body></html>
"""


def page(title: str, body: str, data: Mapping[str, Any]) -> bytes:
    """`body` is HTML, `data` what the script reads."""
    script, style = asset("report.js"), asset("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": POLICY.replace("{hash}", digest),
        "title": text(title),
        "style": style,
        "body": body,
        "data": embedded(data),
        "script": script,
    }
    filled = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], PAGE)
    return filled.encode("utf-8", "replace")


def asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def text(value: Any) -> str:
    """Escaped, and with every character to be seen."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return html.escape(HIDDEN.sub(visible, shown))


def address(path: str | Path) -> str:
    """A file's relative path as a link: a name may hold # or ?, and bytes that are not UTF-8."""
    return quote(os.fsencode(path))


def visible(found: re.Match[str]) -> str:
    """A control character's picture; the number of another one."""
    code = ord(found[0])
    return chr(0x2400 + code) if code < 32 else f"⟨{code:04x}⟩"


def long_text(value: str) -> str:
    """Escaped, and cut in the middle after `LONGEST_TEXT` characters."""
    left_out = len(value) - LONGEST_TEXT
    if left_out <= 0:
        return text(value)
    end = LONGEST_TEXT // 4
    begin = LONGEST_TEXT - end
    return (
        f"{text(value[:begin])}\n<i>{left_out:,} characters left out, they are in the file</i>\n"
        f"{text(value[-end:])}"
    )


def section(title: str, body: str, name: str = "") -> str:
    """Nothing where `body` is empty."""
    named = f' id="{name}"' if name else ""
    return f"<section{named}><h2>{title}</h2>{body}</section>" if body else ""
