"""GPUs by size or by name: "24", "12GB", "4090", "RTX 4060 Ti 16GB", "A100-40GB"; and what they
move and compute, from data sheets."""

import difflib
import re

from unslothrl.errors import UserError
from unslothrl.system.machine import Gpu

LEAST_GB, MOST_GB = 1, 512
USUAL = (8, 6)  # the capability of a GPU that is given by its size
REACHED = 0.5  # of bandwidth and speed on paper

# capability -> name:GB:GB/s:TFLOPS, 16 bit summed in 32; GB as torch has them where ECC takes some
KNOWN: dict[tuple[int, int], str] = {
    (7, 5): "1650:4:128:6 1660:6:192:10 1660TI:6:288:11 2060:6:336:26 2060SUPER:8:448:29 "
    "2070:8:448:30 2070SUPER:8:448:36 2080:8:448:40 2080SUPER:8:496:45 2080TI:11:616:54 "
    "T4:15:320:65 T1000:8:160:5",
    (8, 0): "A100:80:2039:312 A100PCIE:80:1935:312 A30:24:933:165",
    (8, 6): "3050:8:224:18 3060:12:360:26 3060TI:8:448:32 3070:8:448:41 3070TI:8:608:43 "
    "3080:10:760:60 3080TI:12:912:68 3090:24:936:71 3090TI:24:1008:80 A2:15:200:18 A10:22:600:125 "
    "A10G:22:600:70 A16:15:200:18 A40:44:696:150 A2000:12:288:32 A4000:16:448:77 A4500:20:640:95 "
    "A5000:24:768:111 A5500:24:768:136 A6000:48:768:155",
    (8, 9): "4050:6:192:20 4060:8:272:30 4060TI:8:288:44 4070:12:504:58 4070SUPER:12:504:71 "
    "4070TI:12:504:80 4070TISUPER:16:672:88 4080:16:717:97 4080SUPER:16:736:104 4090:24:1008:165 "
    "L4:22:300:121 L40:44:864:181 L40S:44:864:362 6000ADA:48:960:364 5000ADA:32:576:261 "
    "4000ADA:20:360:107 2000ADA:16:224:48",
    (9, 0): "H100:80:3350:989 H100PCIE:80:2000:756 H200:141:4800:989 GH200:96:4000:989",
    (10, 0): "B200:180:8000:2250 B100:180:8000:1800",
    (12, 0): "5050:8:320:26 5060:8:448:38 5060TI:8:448:47 5070:12:672:62 5070TI:16:896:88 "
    "5080:16:960:113 5090:32:1792:210 PRO6000:96:1792:504",
    (12, 1): "GB10:120:273:125",
}
CARDS = {
    name: (float(gb), float(gbps), float(tflops), capability)
    for capability, names in KNOWN.items()
    for name, gb, gbps, tflops in (each.split(":") for each in names.split())
}
SIZES = (  # GB at most; (GB/s, TFLOPS) of the slowest and the fastest
    (8.5, (224, 20), (448, 60)),  # RTX 3050 to 3070
    (12.5, (360, 25), (504, 60)),  # RTX 3060 to 4070
    (17, (288, 30), (736, 100)),  # RTX 4060 Ti and T4 to 4080
    (26, (300, 60), (1008, 165)),  # L4 and RTX 3090 to 4090
    (50, (696, 125), (960, 360)),  # A40 to L40S
    (float("inf"), (1555, 312), (4800, 989)),  # A100 to H200
)
MAKERS = re.compile(
    r"NVIDIA|GEFORCE|TESLA|QUADRO|RTX|GTX|BLACKWELL|WORKSTATION|EDITION|GENERATION|GPU|"
    r"SXM\d?|HBM\d\w?|[\s()_-]"
)
NUMBER = re.compile(r"\d+(\.\d+)?")
SIZE = re.compile(r"(?<![A-Z\d.])(\d+(?:\.\d+)?)\s*G(?:I?B)?\b", re.IGNORECASE)  # no A10G
AT_END = re.compile(r"(\d+(?:\.\d+)?)\s*G(?:I?B)?$", re.IGNORECASE)  # 4060Ti16GB

Rates = tuple[float, float]  # bytes/s, operations/s


def parts_of(text: str) -> tuple[str, float | None]:
    """-> (a GPU's name as `CARDS` has it, the GB that stand with it)."""
    for size in (SIZE, AT_END):
        found, bare = size.findall(text), MAKERS.sub("", size.sub("", text).upper())
        if found or bare in CARDS:
            break
    return bare, float(found[0]) if found else None


def known(gpu: Gpu) -> bool:
    """Whether this is one of `CARDS`. Others of the same name have other memory; a laptop's speed
    depends on the laptop."""
    gb = CARDS.get(parts_of(gpu.name)[0], (0.0,))[0]
    return abs(gpu.physical_mb / 1024 - gb) < 0.15 * gb


def rates(gpu: Gpu) -> tuple[Rates, Rates]:
    """-> what the slowest and the fastest GPU of this one's name, else of its size, reach."""
    _, *both = next(size for size in SIZES if gpu.physical_mb / 1024 <= size[0])
    if known(gpu):
        _, gbps, tflops, _ = CARDS[parts_of(gpu.name)[0]]
        speed = REACHED * gbps * 1e9, REACHED * tflops * 1e12
        return speed, speed
    slow, fast = ((REACHED * gbps * 1e9, REACHED * tflops * 1e12) for gbps, tflops in both)
    return slow, fast


def gpus_of(text: str) -> list[Gpu]:
    return [gpu_of(part.strip(), index) for index, part in enumerate(text.split(","))]


def gpu_of(text: str, index: int = 0) -> Gpu:
    """A number that is a GPU's name is that GPU, any other its GB."""
    bare, gb = parts_of(re.sub("laptop", "", text, flags=re.IGNORECASE))
    if "laptop" in text.lower() and gb is None:
        raise UserError(f"gpu {text:.60}: a laptop's has its own size: add it, e.g. {text:.60} 8GB")
    of_card, *_, capability = CARDS.get(bare, (0.0, USUAL))
    if gb is None or (bare and bare not in CARDS):
        gb = float(text) if bare not in CARDS and NUMBER.fullmatch(text) else of_card
    if not LEAST_GB <= gb <= MOST_GB:
        near = difflib.get_close_matches(bare, CARDS, 1)
        raise UserError(
            f"gpu {text:.60} is not known (NVIDIA's since Turing are), nor GB between {LEAST_GB} "
            f"and {MOST_GB}: set "
            f"e.g. --gpu {near[0] if near else 24}, several with commas"
        )
    name = f"{text} ({gb:g} GB)" if bare in CARDS else f"a GPU of {gb:g} GB"
    mb = round(gb * 1024)
    return Gpu(name, mb, mb, capability, uuid=str(index) if index else "")
