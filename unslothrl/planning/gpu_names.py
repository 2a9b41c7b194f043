"""GPUs by size or by name, for plans: "24", "12GB", "4090", "RTX 4060 Ti 16GB", "A100-40GB"."""

import difflib
import re

from unslothrl.errors import UserError
from unslothrl.system.machine import Gpu

LEAST_GB, MOST_GB = 1, 512
USUAL = (8, 6)  # the capability of a GPU that is given by its size

KNOWN: dict[tuple[int, int], str] = {  # capability -> names with their GB
    (6, 0): "P100:16",
    (6, 1): "1060:6 1070:8 1080:8 1080TI:11 P40:24",
    (7, 0): "V100:16 TITANV:12",
    (7, 5): "1650:4 1660:6 1660TI:6 2060:6 2060SUPER:8 2070:8 2070SUPER:8 2080:8 2080SUPER:8 "
    "2080TI:11 TITANRTX:24 T4:15 T1000:8",
    (8, 0): "A100:80 A30:24",
    (8, 6): "3050:8 3060:12 3060TI:8 3070:8 3070TI:8 3080:10 3080TI:12 3090:24 3090TI:24 A2:16 "
    "A10:24 A10G:24 A16:16 A40:48 A2000:12 A4000:16 A4500:20 A5000:24 A5500:24 A6000:48",
    (8, 9): "4050:6 4060:8 4060TI:8 4070:12 4070SUPER:12 4070TI:12 4070TISUPER:16 4080:16 "
    "4080SUPER:16 4090:24 L4:24 L40:48 L40S:48 6000ADA:48 5000ADA:32 4000ADA:20 2000ADA:16",
    (9, 0): "H100:80 H200:141 GH200:96",
    (10, 0): "B200:180 B100:180",
    (12, 0): "5050:8 5060:8 5060TI:8 5070:12 5070TI:16 5080:16 5090:32 PRO6000:96",
}
CARDS = {
    name: (float(gb), capability)
    for capability, names in KNOWN.items()
    for name, gb in (each.split(":") for each in names.split())
}
MAKERS = re.compile(r"NVIDIA|GEFORCE|TESLA|QUADRO|RTX|GTX|LAPTOP|GPU|SXM\d?|PCIE|[\s_-]")
SIZE = re.compile(r"(.*?)(\d+(?:\.\d+)?)\s*G(?:I?B)?", re.IGNORECASE | re.DOTALL)


def gpus_of(text: str) -> list[Gpu]:
    """The GPUs of `--card 24,4090`. Raises UserError."""
    return [gpu_of(part.strip(), index) for index, part in enumerate(text.split(","))]


def gpu_of(text: str, index: int = 0) -> Gpu:
    """A number that is a GPU's name is that GPU, any other its GB."""
    sized = SIZE.fullmatch(text)
    bare = MAKERS.sub("", (sized[1] if sized else text).upper())
    gb, capability = CARDS.get(bare, (0.0, USUAL))
    if bare not in CARDS and re.fullmatch(r"\d+(\.\d+)?", text):
        gb = float(text)
    elif bare and bare not in CARDS:
        near = difflib.get_close_matches(bare, CARDS, 1)
        hint = f"did you mean {near[0]}, or give its GB" if near else "give its GB"
        raise UserError(f"card {text:.60} is not a known GPU: {hint}: set e.g. --card 24")
    gb = float(sized[2]) if sized else gb
    if not LEAST_GB <= gb <= MOST_GB:
        raise UserError(
            f"card must be GB between {LEAST_GB} and {MOST_GB} or a GPU's name, several with "
            f"commas, got {text:.60}: set e.g. --card 24,4090"
        )
    name = f"{text} ({gb:g} GB)" if bare in CARDS else f"a GPU of {gb:g} GB"
    mb = round(gb * 1024)
    return Gpu(name, mb, mb, capability, uuid=str(index) if index else "")
