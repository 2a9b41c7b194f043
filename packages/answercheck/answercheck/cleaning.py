"""An answer's text without what does not change its meaning: dollar signs around it, spacing
commands, `\\left` and `\\right`, the final period. Characters outside of ASCII become commands,
and the digits of "1{,}000" or "1\\,000" are joined.
"""

import re
import unicodedata
from collections.abc import Callable

from answercheck.vocabulary import GREEK_LETTERS, NUMBER_WORDS

_COMMANDS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "⁄": "/", "∕": "/", "√": r"\sqrt ",
    "∛": r"\sqrt[3]", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "∉": r"\notin ", "∅": r"\emptyset ", "ø": r"\emptyset ",
    "Ø": r"\emptyset ", "∖": r"\setminus ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
    "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "°": r"^\circ ", "º": r"^\circ ",
    "∘": r"\circ ", "…": r"\ldots ", "⋯": r"\ldots ", "′": "'", "″": "''", "’": "'", "‘": "'",
    "“": '"', "”": '"', "。": ".", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅛": r"\frac{1}{8}", "⅕": r"\frac{1}{5}",
    "∠": r"\angle ", "△": r"\triangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ",
    "⌉": r"\rceil ", "⟨": r"\langle ", "⟩": r"\rangle ", "∣": "|", "‖": r"\|", "→": r"\to ",
    "∧": r"\land ", "∨": r"\lor ", "£": r"\pounds ", "¥": "JPY ", "₹": "INR ", "€": r"\euro ",
    "％": r"\%", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "∂": r"\partial ", "µ": r"\mu ",
    "ϕ": r"\phi ", "ϵ": r"\epsilon ", "Ω": r"\Omega ", "Å": r"\AA ", "∼": r"\sim ",
    "⊂": r"\subset ",
}  # fmt: skip
for _letter in map(chr, (*range(0x391, 0x3A2), *range(0x3A3, 0x3AA), *range(0x3B1, 0x3CA))):
    _name = unicodedata.name(_letter).split()[-1].replace("LAMDA", "LAMBDA").lower()
    _name = _name if _letter.islower() else _name.capitalize()
    if _name in (*GREEK_LETTERS, "omicron"):
        _COMMANDS[_letter] = f"\\{_name} "
_COMMANDS |= {"Φ": r"\phi ", "ς": r"\varsigma "}
_RAISED_RUN, _LOWERED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉ₙ]+")
_SELECTOR = re.compile("[\ufe00-\ufe0f]")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?)")

_GAP = r"(?:,\\!\s*|\{,\}\s*|,\\,|\\,|\\;|\\:|\\ |\\!|~|[ \u00a0\u2009\u202f])"
_GAPS = re.compile(_GAP)
_DENOMINATOR = re.compile(r"\s*/\s*(\d+)")
_COMMAS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
_BRACKETS = re.compile(r"\\\{|\\\}|\\[lr]angle(?![a-zA-Z])|[()\[\]]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_CHOICE = re.compile(r"(\\[a-z]+\s*\{\s*)?\(?([A-Za-z])\s*[):.]\s*(\}?)")  # "B)"
_STYLED = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|bf)\s*\{([^{}]*)\}")
_OPTION = re.compile(  # "B", "(B) 12"
    r"(?as)([A-J])|\(?([A-J])([):.])\s+(-?(?:(?:\\?\$)?\.?[A-Za-z\d]|\\[dt]?frac|\\sqrt).*)"
)
_HEDGE = re.compile(r"(?<![A-Za-z\\])([A-J]+|[a-j]|or|nor|and|not|but|wrong|incorrect)(?![A-Za-z])")
_UPRIGHT = (
    r"((?:\\(?:text|mathrm|mathsf|rm)\s*\{[^{}]*\}(?:\^\d|\^\{-?\d\})?(?:\s|\\cdot|\\,|~)*)+)"
)
ESCAPED_DOLLAR = re.compile(r"(?<!\\)\$")


def _grouped(match: re.Match) -> str:
    """ "1 000" as one number, but not "1 134/653", which is mixed."""
    whole, *groups = _GAPS.split(match[0])
    top, bottom = groups[-1], _DENOMINATOR.match(match.string, match.end())
    if bottom and len(groups) == 1 and top[0] != "0" and int(top) < int(bottom[1][:9]):
        return f"{whole} {top}"
    return _GAPS.sub("", match[0])


_REWRITTEN: list[tuple[str, str | Callable[[re.Match], str]]] = [  # in this order
    (r"(?<![A-Za-z])USD?\s*(?=\\?\$\s*\d)", ""),
    (r"\^\s*\{\s*\\(?:circ|degree|textdegree)\s*\}", r"^\\circ "),
    (  # "USD 5" as "5 USD"
        r"(?<![A-Za-z\\])(?:\\text\s*\{\s*)?(USD|EUR|GBP|JPY|CNY|INR|CHF|AUD|CAD|Rs)\.?"
        r"(?:\s*\})?\s*(-?\d+(?:[.,]\d+)*)",
        r"\2 \1",
    ),
    (r"\b([AaPp])\.\s?[Mm]\b\.?", r"\1m"),  # "p.m."
    (r"(?<![a-zA-Z\\])([a-z]{2,4})\.(?= [a-z])", r"\\text{\1}"),  # "sq. units"
    (  # "0.1666...", "0.1212..."
        r"(?<![\d.])(\d*\.\d*?)(?:(\d)\2{2,}|(\d{2,}?)\3+)"
        r"\s*(?:\.\.\.|\\l?dots(?![a-z]))(?!\s*\d)",
        r"\1\\overline{\2\3}",
    ),
    (r"(?<=\d)\s*(?:to|\\text\s*\{\s*to\s*\})\s*(?=\d)", r" \\to "),
    (
        r"(?<=\d)(\s*\\text\s*\{)?\s*(hundred|thousand|million|billion|trillion)\b",
        lambda match: f"\\cdot {NUMBER_WORDS[match[2]]}{match[1] or ''}",
    ),
    (rf"(?<![\d.,])(?<![\d.,][ ])\d{{1,3}}(?:{_GAP}\d{{3}})+(?![\d]|{_GAP}\d)", _grouped),
    (rf"\\[dt]?frac\s*\{{\s*{_UPRIGHT}\}}\s*\{{\s*{_UPRIGHT}\}}", r"\1/(\2)"),
    (r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
    (
        r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?"
        r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|normalsize|large|Large"
        r"|strut|nobreak|allowbreak)(?![a-zA-Z])"
        r"|\\(?:text)?color\s*\{[a-z]+\}|\\!",
        "",
    ),
    (r"\\\\\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]", r"\\\\ "),  # the space after a row
    (
        r"(?<!\\)\\(?:[,;:> \n]|(?:thinspace|medspace|thickspace|enspace|hfill)(?![a-zA-Z]))"
        r"|\\[hv]?(?:space|phantom)\*?\{[^{}]*\}|(?<!\\)~|\s+",
        " ",
    ),
    (
        r"\\pmod\s*(\{[^{}]*\}|\S)"
        r"|\(\s*(?:\\b?mod|\\(?:text|mathrm|operatorname)\{\s*mod\s*\}|mod)\s*([^()]*)\)",
        r" \\mod \1\2",
    ),
]
_REWRITES = [(re.compile(pattern), replacement) for pattern, replacement in _REWRITTEN]


def cleaned(text: str) -> str:
    """The text without what has no meaning; signs outside of ASCII as LaTeX commands."""
    text = text if text.isascii() else to_ascii(text)
    while (inside := _unwrapped(text.strip())) != text:  # wrappers inside wrappers
        text = inside
    if choice := _CHOICE.fullmatch(text):
        return "".join(filter(None, choice.groups()))
    if "\\over " in text or "\\choose" in text:
        text = "{" + text + "}"
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _without_commas(text.strip())


def option(text: str) -> tuple[str, str, str]:
    """The letter of a choice, its mark and the text after it, "" where it names another choice."""
    match = _OPTION.fullmatch(_STYLED.sub(r"\1", cleaned(text)).strip())
    alone, letter, mark, words = match.groups("") if match else ("", "", "", "")
    return ("", "", "") if _HEDGE.search(words) else (alone + letter, mark, words)


def to_ascii(text: str) -> str:
    """With commands for mathematical signs, and without marks that show nothing by themselves."""
    kept = (c for c in text if unicodedata.category(c) not in ("Cf", "Me") or c in "\u202d\u202e")
    text = _ROOT.sub(r"\\sqrt{\1}", _SELECTOR.sub("", "".join(kept)))
    text = _RAISED_RUN.sub(lambda run: "^{" + unicodedata.normalize("NFKC", run[0]) + "}", text)
    text = _LOWERED_RUN.sub(lambda run: "_{" + run[0] + "}", text)
    text = "".join(_COMMANDS.get(character, character) for character in text)
    return unicodedata.normalize("NFKC", text)


def _unwrapped(text: str) -> str:
    """Without one layer of what surrounds an answer: a box, dollar signs, braces, a final mark."""
    box = _BOX.fullmatch(text)
    if box and closing_brace(text, text.index("{")) == len(text) - 1:
        return box[1]
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("**", "**")):
        is_once = text.count(opening) == 1 + (opening == closing)
        if is_once and text.startswith(opening) and text.endswith(closing):
            return text[2:-2]
    if (text.endswith(".") and not text.endswith("..")) or text.endswith((",", ";")):
        text = text[:-1]
    text = text.removesuffix("\\\\")
    if text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
        return text[1:-1]
    dollars = len(ESCAPED_DOLLAR.findall(text))
    if dollars % 2 == 0:
        return ESCAPED_DOLLAR.sub(" ", text)
    return ESCAPED_DOLLAR.sub(r"\\$", text) if dollars == 1 else text


def closing_brace(text: str, opened: int) -> int | None:
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text[opened:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return opened + match.start()
    return None


def _without_commas(text: str) -> str:
    """Joins "1,234". Inside brackets the comma separates, unless a group begins with 0."""

    def joined(match: re.Match) -> str:
        groups = match[0].split(",")
        marks = _BRACKETS.findall(text, 0, match.start())
        depth = sum(1 if mark in ("(", "[", "\\{", "\\langle") else -1 for mark in marks)
        joins = depth <= 0 or any(group[0] == "0" for group in groups[1:])
        return "".join(groups) if joins else match[0]

    return _COMMAS.sub(joined, text)
