"""Removes from an answer's text what does not change its meaning: dollar signs around it, spacing
commands, `\\left` and `\\right`, the final period. Joins the digits of "1{,}000" or "1\\,000".
"""

import re

from unslothrl.rewards.maths.notation.unicode import to_ascii
from unslothrl.rewards.maths.notation.vocabulary import NUMBER_WORDS

_DROPPED = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|normalsize|large|Large"
    r"|strut|nobreak|allowbreak)(?![a-zA-Z])"
    r"|\\(?:text)?color\s*\{[a-z]+\}|\\!"
)
_SPACE = re.compile(
    r"(?<!\\)\\(?:[,;:> \n]|(?:thinspace|medspace|thickspace|enspace|hfill)(?![a-zA-Z]))"
    r"|\\[hv]?(?:space|phantom)\*?\{[^{}]*\}|(?<!\\)~|\s+"
)
_GAP = r"(?:,\\!\s*|\{,\}\s*|,\\,|\\,|\\;|\\:|\\ |\\!|~|[ \u00a0\u2009\u202f])"
_GROUPED = re.compile(rf"(?<![\d.,])(?<![\d.,][ ])\d{{1,3}}(?:{_GAP}\d{{3}})+(?![\d]|{_GAP}\d)")
_GAPS = re.compile(_GAP)
_DENOMINATOR = re.compile(r"\s*/\s*(\d+)")
_COMMAS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
_BRACKETS = re.compile(r"\\\{|\\\}|\\[lr]angle(?![a-zA-Z])|[()\[\]]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_FRACTION = re.compile(r"\{([^{}]*)\\(over|choose)(?![a-zA-Z])([^{}]*)\}")
_UPRIGHT = (
    r"((?:\\(?:text|mathrm|mathsf|rm)\s*\{[^{}]*\}(?:\^\d|\^\{-?\d\})?(?:\s|\\cdot|\\,|~)*)+)"
)
_UNIT_FRACTION = re.compile(rf"\\[dt]?frac\s*\{{\s*{_UPRIGHT}\}}\s*\{{\s*{_UPRIGHT}\}}")
_AM_OR_PM = re.compile(r"\b([AaPp])\.\s?[Mm]\b\.?")  # "p.m."
_ROW_GAP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]")
_MODULUS = re.compile(
    r"\\pmod\s*(\{[^{}]*\}|\S)"
    r"|\(\s*(?:\\b?mod|\\(?:text|mathrm|operatorname)\{\s*mod\s*\}|mod)\s*([^()]*)\)"
)
_CURRENCY = re.compile(  # "USD 5" as "5 USD"
    r"(?<![A-Za-z\\])(?:\\text\s*\{\s*)?(USD|EUR|GBP|JPY|CNY|INR|CHF|AUD|CAD|Rs)\.?(?:\s*\})?\s*"
    r"(-?\d+(?:[.,]\d+)*)"
)
_ABBREVIATED = re.compile(r"(?<![a-zA-Z\\])([a-z]{2,4})\.(?= [a-z])")  # "sq. units"
_REPEATING = re.compile(  # "0.1666...", "0.1212..."
    r"(?<![\d.])(\d*\.\d*?)(?:(\d)\2{2,}|(\d{2,}?)\3+)\s*(?:\.\.\.|\\l?dots(?![a-z]))(?!\s*\d)"
)
_SCALE = re.compile(r"(?<=\d)(\s*\\text\s*\{)?\s*(hundred|thousand|million|billion|trillion)\b")
_TO = re.compile(r"(?<=\d)\s*(?:to|\\text\s*\{\s*to\s*\})\s*(?=\d)")
_US = re.compile(r"(?<![A-Za-z])USD?\s*(?=\\?\$\s*\d)")
_CHOICE = re.compile(r"(\\[a-z]+\s*\{\s*)?\(?([A-Za-z])\s*[):.]\s*(\}?)")  # "B)"
ESCAPED_DOLLAR = re.compile(r"(?<!\\)\$")


def cleaned(text: str) -> str:
    """The text without what has no meaning; signs outside of ASCII as LaTeX commands."""
    if not text.isascii():
        text = to_ascii(text)
    before = None
    while before != text:  # wrappers inside wrappers
        before = text
        text = _unwrapped(text.strip())
    text = _CURRENCY.sub(r"\2 \1", _US.sub("", text))
    if choice := _CHOICE.fullmatch(text):
        return "".join(filter(None, choice.groups()))
    if "." in text:
        text = _ABBREVIATED.sub(r"\\text{\1}", _AM_OR_PM.sub(r"\1m", text))
        text = _REPEATING.sub(r"\1\\overline{\2\3}", text)
    text = _TO.sub(r" \\to ", text)
    text = _SCALE.sub(lambda match: f"\\cdot {NUMBER_WORDS[match[2]]}{match[1] or ''}", text)
    text = _GROUPED.sub(_grouped, text)
    if "frac" in text:
        text = _UNIT_FRACTION.sub(r"\1/(\2)", text)
    if "\\over " in text or "\\choose" in text:
        text = _FRACTION.sub(_as_command, "{" + text + "}")
    text = _ROW_GAP.sub(r"\\\\ ", _DROPPED.sub("", text))
    text = _SPACE.sub(" ", text).strip()
    if "mod" in text:
        text = _MODULUS.sub(r" \\mod \1\2", text)
    return _without_commas(text)


def _grouped(match: re.Match) -> str:
    """ "1 000" as one number, but not "1 134/653", which is mixed."""
    whole, *groups = _GAPS.split(match[0])
    top, bottom = groups[-1], _DENOMINATOR.match(match.string, match.end())
    if bottom and len(groups) == 1 and top[0] != "0" and int(top) < int(bottom[1][:9]):
        return f"{whole} {top}"
    return _GAPS.sub("", match[0])


def _as_command(match: re.Match) -> str:
    """TeX's "a \\over b" as a command that stands before both."""
    command = "frac" if match[2] == "over" else "binom"
    return f"\\{command}{{{match[1]}}}{{{match[3]}}}"


def _unwrapped(text: str) -> str:
    """Without one layer of what surrounds an answer: a box, dollar signs, braces, a final mark."""
    box = _BOX.fullmatch(text)
    if box and _closes_at_end(text, text.index("{")):
        return box[1]
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opening) and text.endswith(closing) and text.count(opening) == 1:
            return text[2:-2]
    if (text.endswith(".") and not text.endswith("..")) or text.endswith((",", ";")):
        text = text[:-1]
    if text.endswith("\\\\"):
        text = text[:-2]
    if text.startswith("{") and text.endswith("}") and _closes_at_end(text, 0):
        return text[1:-1]
    if text.count("**") == 2 and text.startswith("**") and text.endswith("**"):
        return text[2:-2]
    dollars = len(ESCAPED_DOLLAR.findall(text))
    if dollars and dollars % 2 == 0:
        return ESCAPED_DOLLAR.sub(" ", text)
    if dollars == 1:
        return ESCAPED_DOLLAR.sub(r"\\$", text)
    return text


def _closes_at_end(text: str, opened: int) -> bool:
    """Whether the brace at `opened` closes with the last character."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text[opened:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return opened + match.end() == len(text)
    return False


def _without_commas(text: str) -> str:
    """Joins "1,234". Inside brackets the comma separates, unless a group begins with 0."""
    if "," not in text:
        return text

    def joined(match: re.Match) -> str:
        groups = match[0].split(",")
        marks = _BRACKETS.findall(text, 0, match.start())
        depth = sum(1 if mark in ("(", "[", "\\{", "\\langle") else -1 for mark in marks)
        joins = depth <= 0 or any(group[0] == "0" for group in groups[1:])
        return "".join(groups) if joins else match[0]

    return _COMMAS.sub(joined, text)
