"""An answer's text as tokens: LaTeX, Unicode and plain notation alike.

`cleaned` removes what does not change the meaning (dollar signs around it, spacing commands,
`\\left` and `\\right`, the final period) and joins the digits of "1{,}000" or "1\\,000".
"""

import re
import unicodedata
from enum import Enum
from typing import NamedTuple

from unslothrl.rewards.maths.unit_names import SYMBOLS, plain_units

MAX_TOKENS = 600


class Unreadable(ValueError):
    """The text is not in a notation that is understood."""


def words(text: str) -> list[str]:
    """For tables that would be long as lists."""
    return text.split()


class Token(NamedTuple):
    kind: str  # "number", "letter", "command", "text" or "sign"
    value: str
    spaced: bool  # whether a space stands before it


_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "⁄": "/", "∕": "/",
    "√": r"\sqrt ", "∛": r"\sqrt[3]", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ",
    "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ",
    "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∉": r"\notin ",
    "∅": r"\emptyset ", "ø": r"\emptyset ", "Ø": r"\emptyset ", "∖": r"\setminus ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}", "°": r"^\circ ", "º": r"^\circ ", "∘": r"\circ ", "…": r"\ldots ",
    "⋯": r"\ldots ", "′": "'", "″": "''", "’": "'", "‘": "'", "“": '"', "”": '"',
    "。": ".", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅛": r"\frac{1}{8}", "⅕": r"\frac{1}{5}", "∠": r"\angle ",
    "△": r"\triangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "∣": "|", "‖": r"\|", "→": r"\to ", "∧": r"\land ",
    "∨": r"\lor ", "£": r"\pounds ", "€": r"\euro ", "％": r"\%", "∑": r"\sum ",
    "∏": r"\prod ", "∫": r"\int ", "∂": r"\partial ", "µ": r"\mu ", "ϕ": r"\phi ",
    "ϵ": r"\epsilon ", "Ω": r"\Omega ", "Å": r"\AA ", "∼": r"\sim ", "⊂": r"\subset ",
}  # fmt: skip
_GREEK = words(
    """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho
    varsigma sigma tau upsilon varphi chi psi omega"""
)
_UNICODE |= {chr(0x3B1 + i): f"\\{name} " for i, name in enumerate(_GREEK)}
_UNICODE |= {
    chr(0x391 + i): f"\\{name.capitalize()} "
    for i, name in enumerate(_GREEK)
    if name
    not in ("alpha", "beta", "epsilon", "zeta", "eta", "iota", "kappa", "mu", "nu", "omicron")
}
_UNICODE["φ"], _UNICODE["Φ"] = r"\phi ", r"\Phi "
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n", strict=True))
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")

_SAME = {  # spellings of one command; the right side may be a sign
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leq": "le", "leqslant": "le", "leqq": "le", "geq": "ge", "geqslant": "ge", "geqq": "ge",
    "neq": "ne", "lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|",
    "lVert": "Vert", "rVert": "Vert", "|": "Vert", "dots": "ldots", "cdots": "ldots",
    "dotsc": "ldots", "dotsb": "ldots", "varnothing": "emptyset", "land": "and", "wedge": "and",
    "lor": "or", "vee": "or", "{": "lset", "}": "rset", "lbrace": "lset", "rbrace": "rset",
    "varphi": "phi", "lbrack": "[", "rbrack": "]",
    "lparen": "(", "rparen": ")", "backslash": "setminus", "smallsetminus": "setminus",
    "degree": "circ", "ast": "*", "isin": "in", "colon": ":",
    "rightarrow": "to", "Rightarrow": "implies", "iff": "implies", "Longrightarrow": "implies",
    "Leftrightarrow": "implies", "arcctg": "arccot", "tg": "tan", "ctg": "cot", "arctg": "arctan",
    "cosec": "csc", "infin": "infty", "thickapprox": "approx", "simeq": "approx",
    "doteq": "approx", "varepsilon": "epsilon", "bmod": "mod", "prime": "'",
    "bigcup": "cup", "lnot": "neg", "qquad": "quad", "textdegree": "circ",
}  # fmt: skip

_DROPPED = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|normalsize|large|Large"
    r"|strut|nobreak|allowbreak)(?![a-zA-Z])"
    r"|\\(?:text)?color\s*\{[a-z]+\}|\\!|[\u200b-\u200f\u2060-\u2064\ufeff]"
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
_NOON = re.compile(r"\b([AaPp])\.\s?[Mm]\b\.?")  # "p.m."
_ROW_GAP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]")
_MODULUS = re.compile(
    r"\\pmod\s*(\{[^{}]*\}|\S)"
    r"|\(\s*(?:\\b?mod|\\(?:text|mathrm|operatorname)\{\s*mod\s*\}|mod)\s*([^()]*)\)"
)
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?)")
_ESCAPED_DOLLAR = re.compile(r"(?<!\\)\$")


def cleaned(text: str) -> str:
    """The text without what has no meaning; signs outside of ASCII as LaTeX commands."""
    if not text.isascii():
        text = _ascii(text)
    before = None
    while before != text:  # wrappers inside wrappers
        before = text
        text = _unwrapped(text.strip())
    if "." in text:
        text = _NOON.sub(r"\1m", text)
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


def _grouped(found: re.Match) -> str:
    """ "1 000" as one number, but not "1 134/653", which is mixed."""
    whole, *groups = _GAPS.split(found[0])
    top, bottom = groups[-1], _DENOMINATOR.match(found.string, found.end())
    if bottom and len(groups) == 1 and top[0] != "0" and int(top) < int(bottom[1][:9]):
        return f"{whole} {top}"
    return _GAPS.sub("", found[0])


def _as_command(found: re.Match) -> str:
    """TeX's "a \\over b" as a command that stands before both."""
    command = "frac" if found[2] == "over" else "binom"
    return f"\\{command}{{{found[1]}}}{{{found[3]}}}"


def _ascii(text: str) -> str:
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _RAISED_RUN.sub(lambda run: "^{" + "".join(_RAISED[one] for one in run[0]) + "}", text)
    text = _LOWERED_RUN.sub(lambda run: "_{" + "".join(_LOWERED[one] for one in run[0]) + "}", text)
    text = "".join(_UNICODE.get(one, one) for one in text)
    return unicodedata.normalize("NFKC", text)


def _unwrapped(text: str) -> str:
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
    dollars = len(_ESCAPED_DOLLAR.findall(text))
    if dollars and dollars % 2 == 0:
        return _ESCAPED_DOLLAR.sub(" ", text)
    if dollars == 1:
        return _ESCAPED_DOLLAR.sub(r"\\$", text)
    return text


def _closes_at_end(text: str, opened: int) -> bool:
    depth = 0
    for found in re.finditer(r"\\.|[{}]", text[opened:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return opened + found.end() == len(text)
    return False


def _without_commas(text: str) -> str:
    """Joins "1,234". Inside brackets the comma separates, unless a group begins with 0."""
    if "," not in text:
        return text

    def joined(found: re.Match) -> str:
        groups = found[0].split(",")
        marks = _BRACKETS.findall(text, 0, found.start())
        depth = sum(1 if mark in ("(", "[", "\\{", "\\langle") else -1 for mark in marks)
        joins = depth <= 0 or any(group[0] == "0" for group in groups[1:])
        return "".join(groups) if joins else found[0]

    return _COMMAS.sub(joined, text)


TEXT_COMMANDS = {
    "text", "mbox", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "emph",
    "mathrm", "hbox", "operatorname", "operatorname*", "mathsf", "mathtt", "underline",
    "textsc", "bold",
}  # fmt: skip
FONTS = {"mathbf", "boldsymbol", "mathit", "mathcal", "mathnormal", "bm", "pmb", "mathfrak",
         "mathscr", "mathord", "mathop"}  # fmt: skip
FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "arcsec",
    "arccsc", "sinh", "cosh", "tanh", "coth", "sech", "csch", "ln", "log", "lg", "exp", "det",
    "gcd", "lcm", "min", "max", "arcsinh", "arccosh", "arctanh", "arsinh", "arcosh", "artanh",
}  # fmt: skip
_WORDS = FUNCTIONS | {"pi", "sqrt", "infty", "theta", "alpha", "beta", "gamma", "lambda", "cbrt"}
_WORD_AS = {"infinity": "infty", "inf": "infty", "asin": "arcsin", "acos": "arccos",
            "atan": "arctan"}  # fmt: skip
_TWO_LETTERS = {"or", "no", "No", "NO", "is", "to"}  # not products of their letters
_AFTER_NUMBERS = {"am", "pm", "AM", "PM", "in", "of"}  # words after a number or inside of text
_BEFORE_UNITS = {"per", "square", "sq", "cubic", "cu"}
_THREE_LETTERS = {
    "and", "yes", "Yes", "YES", "odd", "Odd", "not", "one", "two", "six", "ten", "all", "any",
    "the", "The", "mph", "per", "lbs", "day", "mol", "deg", "rad", "sec", "min", "hrs", "DNE",
    "for",
    "red", "Red", "are", "kmh", "mod", "but", "Tom", "Sam", "Bob", "Amy", "Ann", "Ben",
    "Max", "Dan", "Joe", "Tim", "Kim", "Meg", "Lee", "Jim", "Mon", "Tue", "Wed", "Thu", "Fri",
    "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
}  # fmt: skip

_LEXER = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+(?![a-zA-Z\d.]))?)"
    r"|\\(?P<begin>begin|end)\s*\{(?P<name>[a-zA-Z]*)\*?\}(?:\s*(?:\[[a-z]\]\s*)?\{[clr|@ ]*\})?"
    r"|\\(?P<command>[a-zA-Z]+\*?|.)"
    r"|(?P<word>[a-zA-Z]+(?:\.[a-z]\.)?)"
    r"|(?P<sign>\*\*|<=|>=|!=|==|\.\.\.|.)",
    re.DOTALL,
)


class Letters(Enum):
    """How plain letters after a number are read where they may be a unit or a product."""

    UNIT, SPACED_UNIT, PRODUCT = range(3)


def tokens(text: str, in_text: bool = False, letters: Letters = Letters.UNIT) -> list[Token]:
    """The tokens of cleaned text. Unreadable where it is too long or a brace does not close."""
    found: list[Token] = []
    at, spaced = 0, False
    while at < len(text):
        match = _LEXER.match(text, at)
        assert match is not None
        at = match.end()
        kind = match.lastgroup
        value = match[kind] if kind else ""
        if kind == "space":
            spaced = True
            continue
        if match["begin"]:
            found.append(Token("command", f"{match['begin']} {match['name']}", spaced))
        elif kind == "command" and value.rstrip("*") in TEXT_COMMANDS | FONTS:
            content, at = _group(text, at)
            found += _styled(value.rstrip("*"), content, spaced)
        elif kind == "command":
            found.append(_command(value, spaced))
        elif kind == "word":
            unit = "" if in_text else _unit_at(text, match.start(), found, letters)
            if unit:
                at = match.start() + len(unit)
                found += _styled("text", unit, spaced)
            else:
                after_number = in_text or (bool(found) and found[-1].kind == "number")
                known = (after_number and value in _AFTER_NUMBERS) or (in_text and value in SYMBOLS)
                found += [Token("text", value, spaced)] if known else _word(value, spaced)
        elif kind == "number":
            found.append(Token("number", value, spaced))
        else:
            found.append(_sign(value, spaced))
        spaced = False
        if len(found) > MAX_TOKENS:
            raise Unreadable("too long")
    return found


def _unit_at(text: str, at: int, before: list[Token], letters: Letters) -> str:
    """The unit in plain letters that begins at a word, "" where none does."""
    if letters is Letters.PRODUCT or not before:
        return ""
    if before[-1].kind != "number" and before[-1].value not in _BEFORE_UNITS:
        return ""
    return plain_units(text, at, letters is Letters.SPACED_UNIT)


def _command(name: str, spaced: bool) -> Token:
    name = _SAME.get(name, name)
    if name in "<>|[]()*':":
        return Token("sign", name, spaced)
    return Token("command", name, spaced)


def _sign(value: str, spaced: bool) -> Token:
    as_command = {"<=": "le", ">=": "ge", "!=": "ne", "...": "ldots"}
    if value in as_command:
        return Token("command", as_command[value], spaced)
    return Token("sign", {"**": "^", "==": "="}.get(value, value), spaced)


def _group(text: str, at: int) -> tuple[str, int]:
    """What stands in the braces from `at` on (or the one character there), and where it ends."""
    while at < len(text) and text[at] == " ":
        at += 1
    if at < len(text) and text[at] != "{":
        return text[at], at + 1
    depth = 0
    for found in re.finditer(r"\\.|[{}]", text[at:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return text[at + 1 : at + found.start()], at + found.end()
    raise Unreadable("a brace that does not close")


def _styled(command: str, content: str, spaced: bool) -> list[Token]:
    """Words are text, but anything with digits or commands in it is read as if it were plain."""
    content = content.replace("~", " ").strip()
    if not content:
        return []
    if command in FONTS:
        inside = tokens(content)
    elif command in ("operatorname", "mathrm") and content.replace(" ", "") in FUNCTIONS:
        return [Token("command", content.replace(" ", ""), spaced)]
    elif command in ("operatorname", "mathrm") and content in _LETTERS:
        return [Token("letter", content, spaced)]
    elif any(one in content for one in "0123456789\\^=$+<>"):
        inside = [
            Token("text", one.value, one.spaced) if one.kind == "letter" else one
            for one in tokens(_ESCAPED_DOLLAR.sub(" ", content), in_text=True)
        ]
    else:
        return _split_text(content, spaced)
    if inside:
        inside[0] = inside[0]._replace(spaced=spaced)
    return inside


_LETTERS = set("deixyzPETR")  # upright, but no unit
_JOINING = re.compile(r"^(and|or|except)\s+|\s+(and|or|except(?: for)?)$")


def _split_text(content: str, spaced: bool) -> list[Token]:
    """ "cm and" as two texts, so that what joins two parts stands alone."""
    bare = content.strip(" ,;")
    found = _JOINING.search(bare)
    if found is None:
        return [Token("text", content, spaced)]
    joins = (found[1] or found[2]).removesuffix(" for")
    rest = (bare[: found.start()] + bare[found.end() :]).strip(" ,;")
    first, second = (joins, rest) if found[1] else (rest, joins)
    return [Token("text", first, spaced), Token("text", second, True)]


def _word(word: str, spaced: bool) -> list[Token]:
    if len(word) == 1:
        return [Token("letter", word, spaced)]
    if word in _WORDS or word in _WORD_AS:
        return [Token("command", _WORD_AS.get(word, word), spaced)]
    if is_word(word):
        return [Token("text", word, spaced)]
    split = re.match(r"(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|ln|log|sqrt|pi)", word)
    if split and len(word) - len(split[0]) == 1:
        return [Token("command", split[0], spaced), Token("letter", word[-1], False)]
    return [Token("letter", one, spaced and i == 0) for i, one in enumerate(word)]


def is_word(word: str) -> bool:
    """Whether letters outside of `\\text` are a word and not a product of variables."""
    if word in _TWO_LETTERS or word in _THREE_LETTERS or "." in word:
        return True
    if len(word) < 4 or word.isupper():
        return False
    in_a_row = "".join(chr(ord(word[0]) + i) for i in range(len(word)))
    return word != in_a_row and any(one in "aeiouyAEIOUY" for one in word)
