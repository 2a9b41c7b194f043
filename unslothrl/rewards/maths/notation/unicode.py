"""Unicode characters as LaTeX commands or plain characters."""

import re
import unicodedata

from unslothrl.rewards.maths.notation.vocabulary import words

_COMMANDS = {
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
    "∨": r"\lor ", "£": r"\pounds ", "¥": "JPY ",
    "₹": "INR ", "€": r"\euro ", "％": r"\%", "∑": r"\sum ",
    "∏": r"\prod ", "∫": r"\int ", "∂": r"\partial ", "µ": r"\mu ", "ϕ": r"\phi ",
    "ϵ": r"\epsilon ", "Ω": r"\Omega ", "Å": r"\AA ", "∼": r"\sim ", "⊂": r"\subset ",
}  # fmt: skip

_GREEK_ORDER = words(  # as in Unicode, from U+03B1 on
    """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho
    varsigma sigma tau upsilon varphi chi psi omega"""
)
_COMMANDS |= {chr(0x3B1 + i): f"\\{name} " for i, name in enumerate(_GREEK_ORDER)}
_COMMANDS |= {
    chr(0x391 + i): f"\\{name.capitalize()} "
    for i, name in enumerate(_GREEK_ORDER)
    if name
    not in ("alpha", "beta", "epsilon", "zeta", "eta", "iota", "kappa", "mu", "nu", "omicron")
}
_COMMANDS["φ"], _COMMANDS["Φ"] = r"\phi ", r"\Phi "
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n", strict=True))
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?)")


def to_ascii(text: str) -> str:
    """With commands for mathematical signs; letters without one stay as they are (NFKC), and what
    shows nothing by itself is left out: marks of direction and of joining, selectors of emoji."""
    text = "".join(each for each in text if not is_invisible(each))
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _RAISED_RUN.sub(
        lambda match: "^{" + "".join(_RAISED[character] for character in match[0]) + "}", text
    )
    text = _LOWERED_RUN.sub(
        lambda match: "_{" + "".join(_LOWERED[character] for character in match[0]) + "}", text
    )
    text = "".join(_COMMANDS.get(character, character) for character in text)
    return unicodedata.normalize("NFKC", text)


def is_invisible(character: str) -> bool:
    """Of Unicode's format characters (not overrides of direction, which turn digits around),
    variation selectors or marks that enclose, as on a keycap."""
    if unicodedata.category(character) in ("Cf", "Me"):
        return character not in "\u202d\u202e"
    return "\ufe00" <= character <= "\ufe0f"
