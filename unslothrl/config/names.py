"""What an option is called: here, in the field, in other systems, and in earlier versions."""

import difflib
import functools
import re
from collections.abc import Collection

from unslothrl.config.option import OBJECTIVE
from unslothrl.files import documented
from unslothrl.text import plain

ALIASES = {  # names of the field -> DistRL-LLM's, which are canonical; both may be written
    "epochs": "episodes",
    "micro_batch_size": "train_batch_size",
    "lora_rank": "max_lora_rank",
    "num_generations": "num_candidates",
    "learning_rate": "lr",
    "gpu": "card",
}
GONE = ("ray_port", "ray_worker_ports", "ray_node_ip", "ray_temp_dir", "renderer")
SECTION = OBJECTIVE.lower()  # of a TOML file, and what its options' flags begin with
ROW = re.compile(r"^\| (`.*?`) \| (.*?) \|(?: (.*?) \|| \|)$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


def in_full(name: str, group: str) -> str:
    """The name of an option with the section that it is in."""
    return f"{SECTION}.{name}" if group == OBJECTIVE else name


def off(flag: str) -> str:
    """What turns a switch off."""
    section, dot, name = flag.rpartition(".")
    return f"{section}{dot}no_{name}"


@functools.cache
def elsewhere() -> dict[str, tuple[list[str], str]]:
    """Names in other systems -> (flags here, what to know), from the tables of the page."""
    rows = ROW.findall(documented("coming-from.md"))
    return {
        theirs: (CODE.findall(here), about.replace("`", ""))
        for names, here, about in rows
        for theirs in CODE.findall(names)
    }


def unknown(name: str, flags: Collection[str], command: str = "train", dashes: str = "--") -> str:
    """The message for an option that `command` does not have. `dashes`: "" in a TOML file."""
    name = plain(name, 80)
    return f"{dashes}{name} is not an option of {command}: {_hint(name, flags, command, dashes)}"


def _hint(name: str, flags: Collection[str], command: str, dashes: str) -> str:
    """What to set instead. A dotted name is looked up whole, then without its first parts."""
    key = name.replace("-", "_").lower()
    parts = key.split(".")[-8:]
    for last in (".".join(parts[i:]) for i in range(len(parts))):
        for own in (last, f"{SECTION}.{last}"):
            if own in flags:
                return f"set {dashes}{own}"
        here, about = elsewhere().get(last, ([], ""))
        if about and not here:
            return f"{about}: leave it out"
        if here and {flag.split()[0].removeprefix("--") for flag in here} <= {*flags}:
            named = " and ".join(dashes + flag.removeprefix("--") for flag in here)
            return f"set {named}" + (f" ({about})" if about else "")
    near = difflib.get_close_matches(key, flags, 1, 0.75)
    return f"did you mean {dashes}{near[0]}?" if near else f"see unslothrl {command} --help"
