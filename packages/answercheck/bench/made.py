"""Golds with right and wrong answers, made by exact arithmetic: what is right follows from how it
was made, not from a checker. The same at every run."""

import functools
import operator
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

Made = tuple[str, list[str], list[str]]  # gold, right, wrong


def frac(value: Fraction, name: str = "frac") -> str:
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\{name}{{{abs(value.numerator)}}}{{{value.denominator}}}"


def decimal(value: Fraction) -> str | None:
    """Its decimals where they end."""
    places = next((n for n in range(8) if (value * 10**n).denominator == 1), None)
    if places is None:
        return None
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return ("-" if value < 0 else "") + text


def plus(value: int, name: str = "") -> str:
    """ "+ 3x" or "- 3x" after another term; nothing for 0."""
    if value == 0:
        return ""
    size = "" if abs(value) == 1 and name else str(abs(value))
    return f" {'+' if value > 0 else '-'} {size}{name}"


def first(value: int, name: str) -> str:
    return {1: name, -1: f"-{name}"}.get(value, f"{value}{name}")


def whole(draw: random.Random, low: int, high: int, *but: int) -> int:
    while (value := draw.randint(low, high)) in but:
        pass
    return value


def hedges(gold: str, other: str) -> list[str]:
    return [f"{gold}, {other}", f"{gold} \\text{{ or }} {other}", f"{gold} or {other}"]


def integers(draw: random.Random) -> Made:
    n = whole(draw, -(10 ** draw.randint(1, 8)), 10 ** draw.randint(1, 8), 0)
    size = f"{abs(n):,}"
    sign = "-" if n < 0 else ""
    right = [f"{n}.0", f"x = {n}", f"${n}$", f"\\({n}\\)", f" {n} ", f"{n}.", f"\\text{{{n}}}"]
    right += [sign + size, sign + size.replace(",", "{,}"), sign + size.replace(",", "\\,")]
    right += [
        sign + size.replace(",", " "),
        str(n).replace("-", "\u2212"),
        f"\\frac{{{2 * n}}}{{2}}",
    ]
    wrong = [
        str(n + 1),
        str(-n),
        str(n * 10),
        f"{n}.5",
        f"{n}\\%",
        f"{n}x",
        f"x \\neq {n}",
        f"{n}!!" if abs(n) > 3 else f"{n}.25",  # 3!! is 3
    ]
    wrong += [f"x > {n}", f"\\frac{{1}}{{{n}}}" if abs(n) > 1 else "7.5", f"{n} + i", f"({n}, {n})"]
    wrong += [*hedges(str(n), str(n + 2)), f"{n}_{{17}}", f"{n} \\pm 1", "0=0", f"x - 1 = {n}"]
    return str(n), right, wrong


def fractions(draw: random.Random) -> Made:
    value = Fraction(whole(draw, -60, 60, 0), draw.randint(2, 40))
    while value.denominator == 1 or abs(value) == 1:
        value = Fraction(whole(draw, -60, 60, 0), draw.randint(2, 40))
    p, q = value.numerator, value.denominator
    right = [
        f"{p}/{q}",
        frac(value, "dfrac"),
        frac(value, "tfrac"),
        f"\\frac{{{3 * p}}}{{{3 * q}}}",
    ]
    right += [
        f"x = {frac(value)}",
        f"\\left({frac(value)}\\right)",
        f"\\frac{{{-p}}}{{{-q}}}",
        f"${p} / {q}$",
    ]
    if abs(value) > 1:
        part = abs(value) - abs(value).__floor__()
        right.append(f"{'-' if p < 0 else ''}{abs(value).__floor__()}{frac(part)}")
    exact = decimal(value)
    right += [exact, exact + "0"] if exact else []
    wrong = [frac(1 / value), frac(-value), frac(value + 1), frac(Fraction(p, q + 1)), str(p)]
    wrong += [
        f"{float(value):.4f}1",
        f"{float(value) + 2e-12:.12f}",
        f"{frac(value)} \\pi",
        f"({p}, {q})",
    ]
    wrong += [
        f"{frac(value)}\\%",
        *hedges(frac(value), frac(value + 2)),
        f"{p}:{q}",
        f"\\frac{{{p}}}{{{q}}}y",
    ]
    if not exact:
        wrong += [f"{float(value):.3f}", f"{float(value):.8f}"]
        right.append(repr(float(value)))
    return frac(value), right, wrong


SQUAREFREE = [2, 3, 5, 6, 7, 10, 11, 13, 14, 15, 17, 19, 21, 22, 23, 26, 29, 30, 31, 33]


def roots(draw: random.Random) -> Made:
    a, b = whole(draw, -12, 12, 0, 1, -1), draw.choice(SQUAREFREE)
    sign = "-" if a < 0 else ""
    right = [
        f"{a} \\sqrt {{{b}}}",
        f"{sign}\\sqrt{{{a * a * b}}}",
        f"{a} \\cdot \\sqrt{{{b}}}",
        f"{a}*sqrt({b})",
    ]
    right += [
        f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}",
        f"{a} \\cdot {b}^{{1/2}}",
        f"x = {a}\\sqrt{{{b}}}",
        f"{a}√{b}",
    ]
    right += [f"\\sqrt{{{b}}} \\cdot {a}" if a > 0 else f"-\\sqrt{{{b}}} \\cdot {-a}"]
    wrong = [
        f"{-a}\\sqrt{{{b}}}",
        f"{a}\\sqrt{{{b + 1}}}",
        f"{a + 1 or 9}\\sqrt{{{b}}}",
        f"{a}\\sqrt[3]{{{b}}}",
    ]
    wrong += [
        f"\\sqrt{{{b}}}",
        f"{a * b}",
        f"{a * b**0.5:.10f}",
        f"{a * b**0.5:.2f}",
        f"\\pm {abs(a)}\\sqrt{{{b}}}",
    ]
    wrong += [
        f"{a} + \\sqrt{{{b}}}",
        f"{a}\\sqrt{{{b}}}i",
        f"{a}\\sqrt{{{b}}} + 10^{{-30}}",
        f"{a}\\sqrt{{{b}}}x",
    ]
    return f"{a}\\sqrt{{{b}}}", right, wrong + hedges(f"{a}\\sqrt{{{b}}}", str(a))


def surds(draw: random.Random) -> Made:
    a, b, c = whole(draw, -9, 9, 0), whole(draw, 2, 9), draw.choice(SQUAREFREE)
    root = f"{b}\\sqrt{{{c}}}"
    right = [
        f"{root}{plus(a)}",
        f"{a} + \\sqrt{{{b * b * c}}}",
        f"\\frac{{{2 * a} + {2 * b}\\sqrt{{{c}}}}}{{2}}",
    ]
    right += [
        f"x = {a}+{root}",
        f"-({-a} - {root})",
        f"\\frac{{{a * a - b * b * c}}}{{{a} - {root}}}",
    ]
    wrong = [
        f"{a} - {root}",
        f"{-a} + {root}",
        f"{a + 1} + {root}",
        f"{a} + {b + 1}\\sqrt{{{c}}}",
        f"{a} \\pm {root}",
    ]
    wrong += [
        f"{a} \\cdot {root}",
        f"{a + b * c**0.5:.6f}",
        root,
        f"{a} + {b} + \\sqrt{{{c}}}",
        f"({a}, {root})",
    ]
    return f"{a} + {root}", right, wrong


def plus_minus(draw: random.Random) -> Made:
    a, c = whole(draw, -9, 9, 0), draw.choice(SQUAREFREE)
    one, two = f"{a} + \\sqrt{{{c}}}", f"{a} - \\sqrt{{{c}}}"
    right = [
        f"{one}, {two}",
        f"{two}, {one}",
        f"x = {a} \\pm \\sqrt{{{c}}}",
        f"{one} \\text{{ and }} {two}",
    ]
    right += [
        f"\\{{{two}, {one}\\}}",
        f"x = {one} \\text{{ or }} x = {two}",
        f"\\frac{{{2 * a} \\pm \\sqrt{{{4 * c}}}}}{{2}}",
    ]
    wrong = [
        one,
        two,
        f"{-a} \\pm \\sqrt{{{c}}}",
        f"{a} \\pm \\sqrt{{{c + 1}}}",
        f"{one}, {two}, 0",
        f"({one}, {two})",
    ]
    wrong += [
        f"{one}, {one}",
        f"{a + 1} \\pm \\sqrt{{{c}}}",
        f"\\pm \\sqrt{{{c}}}",
        f"{one} \\text{{ or }} {-a} - \\sqrt{{{c}}}",
    ]
    return f"{a} \\pm \\sqrt{{{c}}}", right, wrong


def multiples_of_pi(draw: random.Random) -> Made:
    value = Fraction(whole(draw, -30, 30, 0), draw.randint(1, 12))
    while abs(value) == 1:
        value = Fraction(whole(draw, -30, 30, 0), draw.randint(1, 12))
    p, q = value.numerator, value.denominator
    gold = f"{p}\\pi" if q == 1 else f"\\frac{{{p}\\pi}}{{{q}}}"
    right = [
        f"{frac(value)}\\pi",
        f"{p}\\pi/{q}",
        f"{p}π/{q}",
        f"\\frac{{{2 * p}\\pi}}{{{2 * q}}}",
        f"\\pi \\cdot {frac(value) if p > 0 else '(' + frac(value) + ')'}",
    ]
    wrong = [
        f"{float(value) * 3.14159265:.4f}",
        f"{float(value) * 3.14:.2f}",
        frac(value),
        f"{frac(-value)}\\pi",
    ]
    wrong += [
        f"{frac(value + 1)} \\pi" if value != -1 else "7",
        f"{frac(value)}\\pi^2",
        f"\\frac{{{p}}}{{{q}\\pi}}",
        f"{frac(value)}\\Pi",
    ]
    return gold, right, [*wrong, f"{frac(value)}p", f"{gold} + 2k\\pi", f"{frac(value * 180)}"]


def decimals(draw: random.Random) -> Made:
    value = Fraction(whole(draw, -99999, 99999, 0), 10 ** draw.randint(1, 4))
    while value.denominator == 1:
        value = Fraction(whole(draw, -99999, 99999, 0), 10 ** draw.randint(1, 4))
    text = decimal(value)
    assert text is not None
    step = Fraction(1, 10 ** len(text.partition(".")[2]))
    near = decimal(value + step), decimal(value - step)
    right = [
        text + "0",
        text + "00",
        f"x = {text}",
        f"${text}$",
        frac(value),
        text.replace("-", "\u2212"),
    ]
    right += [text.replace("0.", ".", 1)] if text.startswith(("0.", "-0.")) else []
    wrong = [
        *[one for one in near if one],
        decimal(-value) or "",
        text.replace(".", ""),
        text.replace(".", ",", 1) + "7",
    ]
    wrong += [f"{text}\\%", f"{text}x", text + "1", *hedges(text, "1"), decimal(value * 10) or ""]
    return text, right, wrong


def scientific(draw: random.Random) -> Made:
    mantissa, power = draw.randint(101, 999), whole(draw, -40, 40, 0, 1, -1, 10)
    m = f"{mantissa // 100}.{mantissa % 100:02d}"
    right = [
        f"{m} \\cdot 10^{{{power}}}",
        f"{m}e{power}",
        f"{m}*10^{{{power}}}",
        f"{m}×10^{{{power}}}",
        f"{m}0 \\times 10^{{{power}}}",
    ]
    right += [f"{mantissa} \\times 10^{{{power - 2}}}"]
    wrong = [
        f"{m}\\times 10^{{{power + 1}}}",
        f"{m}\\times 10^{{{-power}}}",
        f"-{m}\\times 10^{{{power}}}",
        "0",
        m,
    ]
    wrong += [
        f"{(mantissa + 1) / 100:.2f}\\times 10^{{{power}}}",
        f"10^{{{power}}}",
        f"{m} \\times {power}^{{10}}",
        f"{m}\\times 10",
    ]
    return f"{m}\\times 10^{{{power}}}", right, wrong


def percents(draw: random.Random) -> Made:
    n = draw.randint(2, 99)
    right = [
        f"{n}%",
        f"{n} \\%",
        f"{n}\\,\\%",
        f"{n}\\text{{ percent}}",
        f"{n} percent",
        f"{n}.0\\%",
        f"x={n}\\%",
    ]
    wrong = [
        f"{n + 1}\\%",
        f"-{n}\\%",
        f"{n}0\\%",
        f"{n}^\\circ",
        f"{n}\\text{{ cm}}",
        f"{n}\\% \\text{{ or }} {n + 1}\\%",
        str(n + 1),
    ]
    return f"{n}\\%", right, wrong


def money(draw: random.Random) -> Made:
    n = draw.randint(2, 99999)
    right = [
        str(n),
        f"\\${n}",
        f"${n}",
        f"\\${n:,}",
        f"{n:,}",
        f"\\$ {n}",
        f"\\${n}.00",
        f"{n}\\text{{ dollars}}",
        f"\\${n:,}".replace(",", "{,}"),
    ]
    wrong = [
        f"\\${n + 1}",
        str(n + 1),
        f"-\\${n}",
        f"{n}\\text{{ cents}}",
        f"\\${n}0",
        f"\\${n} \\text{{ or }} \\${n + 1}",
        f"{n}\\%",
    ]
    return f"\\${n}", right, wrong


def degrees(draw: random.Random) -> Made:
    n = draw.randint(5, 359)
    right = [
        str(n),
        f"{n}^{{\\circ}}",
        f"{n}°",
        f"{n}\\text{{ degrees}}",
        f"{n} degrees",
        f"\\angle ABC = {n}^\\circ",
        f"x={n}",
        f"{n}\\degree",
    ]
    wrong = [
        f"{n + 1}^\\circ",
        f"-{n}^\\circ",
        f"{n}0",
        frac(Fraction(n, 180)) + "\\pi",
        f"{n}\\%",
        f"{n}\\text{{ cm}}",
        f"{n}^\\circ \\text{{ or }} 1^\\circ",
        f"{n}^\\circ, 3^\\circ",
    ]
    return f"{n}^\\circ", right, wrong


def bases(draw: random.Random) -> Made:
    base = draw.randint(3, 9)
    digits = str(draw.randint(1, base - 1)) + "".join(
        str(draw.randint(0, base - 1)) for _ in range(draw.randint(1, 5))
    )
    other = digits[:-1] + str((int(digits[-1]) + 1) % base)
    name = ["three", "four", "five", "six", "seven", "eight", "nine"][base - 3]
    right = [
        f"{digits}_{{{base}}}",
        f"{digits}_{{\\text{{{name}}}}}",
        f"x={digits}_{base}",
        f"{{{digits}}}_{base}",
    ]
    wrong = [
        digits,
        f"{other}_{base}",
        f"{digits}_{base + 1}",
        str(int(digits, base)),
        f"-{digits}_{base}",
        f"{digits}0_{base}",
        f"{digits}^{base}",
    ]
    return f"{digits}_{base}", right, wrong


UNITS = [
    ("cm", "m", "centimeters"),
    ("km", "cm", "kilometers"),
    ("kg", "g", "kilograms"),
    ("inches", "feet", "inches"),
    ("hours", "minutes", "hours"),
    ("miles", "km", "miles"),
    ("mL", "L", "milliliters"),
    ("apples", "pears", "apples"),
    ("days", "weeks", "days"),
]


def units(draw: random.Random) -> Made:
    n, (unit, other, long), power = (
        draw.randint(2, 999),
        draw.choice(UNITS),
        draw.choice([1, 1, 2, 3]),
    )
    if unit in ("hours", "apples", "days", "kg", "mL"):
        power = 1
    up = f"^{power}" if power > 1 else ""
    braced = f"^{{{power}}}" if power > 1 else ""
    square = {1: "", 2: "square ", 3: "cubic "}[power]
    gold = f"{n}\\text{{ {unit}}}{up}"
    right = [
        str(n),
        f"{n} {unit}{up}",
        f"{n}\\,\\mathrm{{{unit}}}{braced}",
        f"{n}\\mbox{{ {unit}}}{braced}",
        f"{n}~\\text{{{unit}}}{up}",
        f"{n}\\text{{ {square}{long}}}",
        f"x = {gold}",
        f"{n}.0\\text{{ {unit}}}{up}",
    ]
    wrong = [
        f"{n + 1}\\text{{ {unit}}}{up}",
        str(n + 1),
        f"{n}\\text{{ {other}}}{up}",
        f"{n}\\text{{ {unit}}}^{power + 1}",
        f"-{n}\\text{{ {unit}}}{up}",
        f"{n}\\%",
        f"{n}\\text{{ or }}{n + 1}\\text{{ {unit}}}",
        f"{n} {other}{up}",
    ]
    return gold, right, wrong


def ends(draw: random.Random) -> tuple[Fraction, Fraction]:
    low = Fraction(draw.randint(-20, 20), draw.choice([1, 1, 1, 2, 3]))
    return low, low + Fraction(draw.randint(1, 30), draw.choice([1, 1, 2, 3]))


def intervals(draw: random.Random) -> Made:
    low, high = ends(draw)
    a, b = frac(low), frac(high)
    left, right_bracket = draw.choice("(["), draw.choice(")]")
    less, more = "<" if left == "(" else "\\le", "<" if right_bracket == ")" else "\\le"
    flipped, opposite = "[" if left == "(" else "(", "]" if right_bracket == ")" else ")"
    turned = (
        more.replace("<", ">").replace("\\le", "\\ge"),
        less.replace("<", ">").replace("\\le", "\\ge"),
    )
    gold = f"{left}{a}, {b}{right_bracket}"
    right = [
        f"\\left{left}{a},{b}\\right{right_bracket}",
        f"x \\in {gold}",
        f"{a} {less} x {more} {b}",
        f"{b} {turned[0]} x {turned[1]} {a}",
    ]
    right += [
        f"\\{{x \\mid {a} {less} x {more} {b}\\}}",
        f"\\{{x \\in \\mathbb{{R}} : {a} {less} x {more} {b}\\}}",
        f"x {turned[1]} {a} \\text{{ and }} x {more} {b}",
    ]
    wrong = [
        f"{flipped}{a}, {b}{right_bracket}",
        f"{left}{a}, {b}{opposite}",
        f"{left}{frac(low - 1)}, {b}{right_bracket}",
        f"{left}{a}, {frac(high + 1)}{right_bracket}",
    ]
    wrong += [
        f"\\{{{a}, {b}\\}}",
        f"{a}, {b}",
        f"{left}{a}, \\infty)",
        f"x {turned[1]} {a}",
        f"{left}{b}, {a}{right_bracket}",
        a,
    ]
    wrong += [
        f"{a} {'<' if less != '<' else chr(92) + 'le'} x {more} {b}",
        f"{gold} \\cup ({frac(high + 5)}, {frac(high + 6)})",
    ]
    return gold, right, wrong


def unions(draw: random.Random) -> Made:
    a = draw.randint(-20, 10)
    b = a + draw.randint(1, 9)
    closed = draw.random() < 0.5
    o, c = ("[", "]") if closed else ("(", ")")
    ge, le = ("\\ge", "\\le") if closed else (">", "<")
    gold = f"(-\\infty, {a}{c} \\cup {o}{b}, \\infty)"
    right = [
        f"{o}{b}, \\infty) \\cup (-\\infty, {a}{c}",
        f"x {le} {a} \\text{{ or }} x {ge} {b}",
        f"x {ge} {b} \\text{{ or }} x {le} {a}",
    ]
    right += [
        f"x \\in {gold}",
        f"(-\\infty,{a}{c}\\cup{o}{b},+\\infty)",
        f"(-∞,{a}{c}∪{o}{b},∞)",
        f"\\{{x \\mid x {le} {a} \\text{{ or }} x {ge} {b}\\}}",
    ]
    oo, cc = ("(", ")") if closed else ("[", "]")
    wrong = [
        f"(-\\infty, {a}{cc} \\cup {o}{b}, \\infty)",
        f"(-\\infty, {a}{c} \\cup {oo}{b}, \\infty)",
        f"(-\\infty, {a}{c}",
        f"{o}{b}, \\infty)",
    ]
    wrong += [
        f"(-\\infty, {a + 1}{c} \\cup {o}{b + 1}, \\infty)",
        f"{a} {le} x {le} {b}",
        "(-\\infty, \\infty)",
        f"(-\\infty, {a}{c} \\cap {o}{b}, \\infty)",
        f"{o}{a}, {b}{c}",
        f"x {ge} {b}",
    ]
    return gold, right, wrong


def inequalities(draw: random.Random) -> Made:
    value, name = Fraction(draw.randint(-40, 40), draw.choice([1, 1, 2, 3])), draw.choice("xyzatn")
    sign, turned = draw.choice([("<", ">"), (">", "<"), ("\\le", "\\ge"), ("\\ge", "\\le")])
    other = {"<": "\\le", ">": "\\ge", "\\le": "<", "\\ge": ">"}
    end, closed = frac(value), sign in ("\\le", "\\ge")
    up = sign in (">", "\\ge")
    span = (
        f"{'[' if closed else '('}{end}, \\infty)"
        if up
        else f"(-\\infty, {end}{']' if closed else ')'}"
    )
    right = [
        f"{end} {turned} {name}",
        span,
        f"{name} \\in {span}",
        f"{name}{sign} {end}",
        f"\\{{{name} \\mid {name} {sign} {end}\\}}",
    ]
    letter = "w"
    wrong = [
        f"{name} {turned} {end}",
        f"{name} {other[sign]} {end}",
        f"{name} {sign} {frac(value + 1)}",
        f"{name} = {end}",
        end,
        f"{letter} {sign} {end}",
        f"{name} \\ne {end}",
        f"{name.upper()} {sign} {end}",
    ]
    wrong += [
        f"{name} {sign} {end} \\text{{ or }} {name} = {frac(value + (-3 if up else 3))}",
        "(-\\infty, \\infty)",
    ]
    return f"{name} {sign} {end}", right, wrong


def sets(draw: random.Random) -> Made:
    values = draw.sample(range(-30, 60), draw.randint(2, 5))
    mixed = draw.sample(values, len(values))
    text, shuffled = ", ".join(map(str, values)), ", ".join(map(str, mixed))
    braced = draw.random() < 0.5
    gold = f"\\{{{text}\\}}" if braced else text
    right = [
        shuffled,
        f"\\{{{shuffled}\\}}",
        f"\\left\\{{{shuffled}\\right\\}}",
        shuffled.replace(", ", ","),
        f"{', '.join(map(str, mixed[:-1]))} \\text{{ and }} {mixed[-1]}",
    ]
    right += [
        ", ".join(f"x={one}" for one in mixed),
        " \\text{ or } ".join(f"x = {one}" for one in mixed),
        f"x = {shuffled}",
    ]
    right += [
        f"{', '.join(map(str, mixed[:-1]))} and {mixed[-1]}",
        f"{shuffled}, {mixed[0]}" if braced else shuffled,
    ]
    more = next(n for n in range(61, 99))
    fewer = ", ".join(map(str, mixed[1:]))
    changed = ", ".join(map(str, [mixed[0] + 100, *mixed[1:]]))
    wrong = [
        fewer,
        f"\\{{{fewer}\\}}",
        f"{shuffled}, {more}",
        f"\\{{{shuffled}, {more}\\}}",
        changed,
        f"({text})",
        f"[{text}]",
        f"{text}, \\ldots",
        str(sum(values) + 1000),
        f"\\{{{changed}\\}}",
        str(values[0]),
    ]
    return gold, right, wrong


def tuples(draw: random.Random) -> Made:
    values = [
        Fraction(whole(draw, -20, 20), draw.choice([1, 1, 1, 2, 3]))
        for _ in range(draw.choice([2, 2, 3, 3, 4]))
    ]
    while len(set(values)) < len(values) or any(v == 0 for v in values):
        values = [v + i + 1 for i, v in enumerate(values)]
    parts = [frac(one) for one in values]
    text = ", ".join(parts)
    names = {2: "(x,y)", 3: "(x,y,z)", 4: "(a,b,c,d)"}[len(values)]
    right = [
        f"({text})",
        f"\\left( {text} \\right)",
        f"\\langle {text} \\rangle",
        f"{names} = ({text})",
        f"({','.join(parts)})",
        f"({', '.join(one.replace('frac', 'dfrac') for one in parts)})",
    ]
    swapped = [parts[1], parts[0], *parts[2:]]
    changed = [frac(-values[0]), *parts[1:]]
    wrong = [
        f"({', '.join(swapped)})",
        f"({', '.join(changed)})",
        f"({text}, 0)",
        f"({', '.join(parts[1:])})",
        text,
        f"\\{{{text}\\}}",
        f"[{text}]",
        f"({text}), 5",
    ]
    wrong += [
        f"({', '.join([*parts[:-1], frac(values[-1] + 1)])})",
        f"({text}) \\text{{ or }} (0, 0)",
        frac(sum(values, Fraction(0)) + 500),
    ]
    return f"\\left({text}\\right)", right, wrong


def lists_of_tuples(draw: random.Random) -> Made:
    numbers = draw.sample(range(-15, 30), 6)
    pairs = [f"({numbers[i]}, {numbers[i + 1]})" for i in (0, 2, 4)][: draw.choice([2, 3])]
    back = pairs[::-1]
    right = [
        ", ".join(back),
        f"\\{{{', '.join(back)}\\}}",
        " \\text{ and } ".join(back),
        ",".join(pairs).replace(" ", ""),
    ]
    swapped = f"({numbers[1]}, {numbers[0]})"
    wrong = [
        pairs[0],
        ", ".join([swapped, *pairs[1:]]),
        ", ".join([*pairs, "(99, 98)"]),
        ", ".join(pairs[1:]),
        f"({', '.join(str(n) for n in numbers[: 2 * len(pairs)])})",
    ]
    wrong += [
        ", ".join([f"({numbers[0]}, {numbers[3]})", f"({numbers[2]}, {numbers[1]})", *pairs[2:]]),
        ", ".join([*pairs, "5"]),
    ]
    return ", ".join(pairs), right, wrong


def rows_of(values: list[list[str]], name: str, end: str = "") -> str:
    body = " \\\\ ".join(" & ".join(row) for row in values)
    return f"\\begin{{{name}}} {body} {end}\\end{{{name}}}"


def matrices(draw: random.Random) -> Made:
    rows, columns = draw.choice([(2, 2), (2, 2), (2, 3), (3, 3), (2, 1), (3, 1)])
    numbers = draw.sample(range(-20, 40), rows * columns)
    values = [[str(numbers[r * columns + c]) for c in range(columns)] for r in range(rows)]
    doubled = [[str(2 * int(one)) for one in row] for row in values]
    turned = [[values[r][c] for r in range(rows)] for c in range(columns)]
    changed = [list(row) for row in values]
    at = draw.randrange(rows), draw.randrange(columns)
    changed[at[0]][at[1]] = str(int(changed[at[0]][at[1]]) + 1)
    right = [
        rows_of(values, "bmatrix"),
        rows_of(values, "pmatrix").replace(" ", ""),
        rows_of(values, "pmatrix", "\\\\ "),
    ]
    right += [
        f"\\frac{{1}}{{2}}{rows_of(doubled, 'pmatrix')}",
        f"A = {rows_of(values, 'pmatrix')}",
        "\\left["
        + rows_of(values, "array").replace("{array}", "{array}{" + "c" * columns + "}", 1)
        + "\\right]",
    ]
    wrong = [
        rows_of(changed, "pmatrix"),
        rows_of(changed, "bmatrix"),
        rows_of(turned, "pmatrix"),
        rows_of(doubled, "pmatrix"),
        rows_of(values[:-1], "pmatrix"),
    ]
    wrong += [
        rows_of(values[::-1], "pmatrix"),
        rows_of([*values, values[0]], "pmatrix"),
        f"-{rows_of(values, 'pmatrix')}",
        rows_of([functools.reduce(operator.iadd, values, [])], "bmatrix") if rows > 1 else "1",
        values[0][0],
    ]
    return rows_of(values, "pmatrix"), right, wrong


def lines(draw: random.Random) -> Made:
    m, c = whole(draw, -9, 9, 0, 1), whole(draw, -9, 9, 0)
    side = first(m, "x") + plus(c)
    if draw.random() < 0.5:
        gold = f"y = {side}"
    else:
        gold = f"{first(m, 'x')} - y{plus(c)} = 0"
    right = [
        f"y={side}",
        f"{side} = y",
        f"2y = {2 * m}x{plus(2 * c)}",
        f"y {'-' if m > 0 else '+'} {abs(m)}x = {c}",
        f"{m}x - y{plus(c)} = 0",
        f"-y = {-m}x{plus(-c)}",
        f"{3 * m}x - 3y = {-3 * c}",
    ]
    right += [f"\\frac{{y}}{{2}} = \\frac{{{m}x{plus(c)}}}{{2}}"]
    wrong = [
        f"y = {first(m, 'x')}{plus(c + 1)}",
        f"y = {first(m, 'x')}{plus(-c)}",
        f"y = {first(-m, 'x')}{plus(c)}",
        f"y = {first(m + 1, 'x') if m != -1 else '5x'}{plus(c)}",
        "0 = 0",
        "1 = 1",
        "y = y",
        "x = x",
    ]
    wrong += [
        f"x = {first(m, 'y')}{plus(c)}" if m != -1 else "x = 7y + 1",
        f"Y = {side}",
        f"y + 1 = {side}",
        f"y > {side}",
        f"{m}x{plus(c)}",
        f"y = {side.replace('x', 't')}",
        "0 = 1",
        f"y = {side}, y = 0",
    ]
    return gold, right, wrong


def curves(draw: random.Random) -> Made:
    h, k, r = whole(draw, -9, 9, 0), whole(draw, -9, 9, 0), draw.randint(2, 12)
    a, b = f"(x{plus(-h)})^2", f"(y{plus(-k)})^2"
    expanded = f"x^2 + y^2{plus(-2 * h, 'x')}{plus(-2 * k, 'y')}{plus(h * h + k * k - r * r)} = 0"
    right = [
        f"{b} + {a} = {r * r}",
        expanded,
        f"{r * r} = {a} + {b}",
        f"{a} + {b} = {r}^2",
        f"{a} + {b} - {r * r} = 0",
        f"2{a} + 2{b} = {2 * r * r}",
    ]
    wrong = [
        f"{a} + {b} = {r * r + 1}",
        f"{a} + {b} = {r}",
        f"{a} - {b} = {r * r}",
        f"(x{plus(h)})^2 + {b} = {r * r}",
        f"{a} + (y{plus(k)})^2 = {r * r}",
        "0 = 0",
        f"{r * r} = {r * r}",
        f"{a} + {b}",
        str(r),
        f"{a} + {b} \\le {r * r}",
    ]
    return f"{a} + {b} = {r * r}", right, wrong


def named(draw: random.Random) -> Made:
    value, name = (
        Fraction(draw.randint(-50, 50), draw.choice([1, 1, 1, 2, 3, 7])),
        draw.choice("xyzabkmnrtABN"),
    )
    text, other = frac(value), draw.choice("pquvw")
    right = [
        text,
        f"{text} = {name}",
        f"{name}={text}",
        f"{name} = {frac(value, 'dfrac')}",
        f"2{name} = {frac(2 * value)}",
        f"${name} = {text}$",
    ]
    wrong = [
        f"{name} = {frac(value + 1)}",
        frac(value + 1),
        f"{other} = {text}",
        f"{name} \\ne {text}",
        f"{name} > {text}",
        f"{name} = {text}, {name} = {frac(value + 2)}",
        "0 = 0",
        f"{name} = {name}",
        f"{text} = {text}",
        f"{name}^2 = {text}",
        f"{name.swapcase()} = {text}",
    ]
    return f"{name} = {text}", right, wrong


def truths(draw: random.Random) -> Made:
    b, p = draw.randint(2, 9), draw.randint(2, 5)
    gold, turned = f"{b}^{p} = {b**p}", f"{b**p} = {b}^{p}"
    if draw.random() < 0.5:
        gold, turned = f"\\log_{{{b}}} {b**p} = {p}", f"{p} = \\log_{b} {{{b**p}}}"
    right = [turned, gold.replace(" ", "") if "log" not in gold else f"\\log_{b}{{{b**p}}} = {p}"]
    wrong = [
        "0 = 0",
        "1 = 1",
        f"{b**p} = {b**p}",
        f"{p} = {p}",
        f"{b}^{p} = {b**p + 1}",
        f"{b + 1}^{p} = {(b + 1) ** p}",
        "5 = 216",
        "x = x",
        f"\\log_{{{b + 1}}} {(b + 1) ** p} = {p}",
    ]
    return gold, right, wrong


def poly(coefficients: list[int], name: str = "x") -> str:
    """From the highest power down."""
    top = len(coefficients) - 1
    text = ""
    for i, value in enumerate(coefficients):
        power = top - i
        letter = (
            ""
            if power == 0
            else name
            if power == 1
            else f"{name}^{power}"
            if power < 10
            else f"{name}^{{{power}}}"
        )
        if value:
            text += (
                plus(value, letter) if text else (first(value, letter) if letter else str(value))
            )
    return text or "0"


def product(a: list[int], b: list[int]) -> list[int]:
    found = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + j] += x * y
    return found


def polynomials(draw: random.Random) -> Made:
    name = draw.choice("xyntkab")
    factors = [[whole(draw, 1, 4), whole(draw, -9, 9, 0)] for _ in range(draw.choice([2, 2, 3]))]
    coefficients = [1]
    for one in factors:
        coefficients = product(coefficients, one)
    factored = "".join(f"({poly(one, name)})" for one in factors)
    back = " \\cdot ".join(f"({poly(one, name)})" for one in reversed(factors))
    expanded = poly(coefficients, name)
    gold, other = (expanded, factored) if draw.random() < 0.5 else (factored, expanded)
    right = [
        other,
        back,
        f"{expanded.replace(' ', '')}",
        f"-({poly([-c for c in coefficients], name)})",
        f"\\frac{{{poly([2 * c for c in coefficients], name)}}}{{2}}",
    ]
    changed = list(coefficients)
    at = draw.randrange(len(changed))
    changed[at] += draw.choice([-1, 1, 2])
    last = [*coefficients[:-1], -coefficients[-1]]
    wrong = [
        poly(changed, name) if any(changed) else "1",
        poly(last, name),
        poly([-c for c in coefficients], name),
        poly([*coefficients, 0], name),
        poly(coefficients, name.upper()),
        poly(coefficients, "w"),
    ]
    wrong += [
        f"{expanded} + 1",
        f"{expanded} = 0",
        f"{expanded} + 0.0001",
        str(sum(coefficients) + 10**6),
        f"{factored}({name} + 11)",
    ]
    return gold, right, wrong


def rational_expressions(draw: random.Random) -> Made:
    a, b, c = whole(draw, 1, 9), whole(draw, -9, 9, 0), whole(draw, 2, 9)
    p = whole(draw, -9, 9, 0)
    while a * c == b * 1 or p == 0 or b == a * p:
        b, p = whole(draw, -9, 9, 0), whole(draw, -9, 9, 0)
    top = f"{first(a, 'x')}{plus(b)}"
    gold = f"\\frac{{{top}}}{{x{plus(p)}}}"
    right = [
        f"({top})/(x{plus(p)})",
        f"\\frac{{{2 * a}x{plus(2 * b)}}}{{2x{plus(2 * p)}}}",
        f"\\frac{{{-a}x{plus(-b)}}}{{-x{plus(-p)}}}",
        f"{a} + \\frac{{{b - a * p}}}{{x{plus(p)}}}",
        f"({top})(x{plus(p)})^{{-1}}",
    ]
    wrong = [
        f"\\frac{{x{plus(p)}}}{{{top}}}",
        f"\\frac{{{first(a, 'x')}{plus(b + 1) or ' + 0'}}}{{x{plus(p)}}}",
        f"\\frac{{{top}}}{{x{plus(p + 1)}}}",
        f"-{gold}",
        gold.replace("x", "X"),
        gold.replace("x", "t"),
        top,
        f"{gold} + 1",
        f"({top})(x{plus(p)})",
        f"{gold} = 0",
        f"\\frac{{{top}}}{{x{plus(-p)}}}",
    ]
    return gold, right, wrong


def trigonometric(draw: random.Random) -> Made:
    a, name = draw.randint(2, 9), draw.choice(["x", "t", "\\theta", "\\alpha"])
    gold = f"{a}\\sin 2{name}"
    right = [
        f"{2 * a}\\sin {name} \\cos {name}",
        f"{a}\\sin(2{name})",
        f"{a} \\cdot \\sin{{2{name}}}",
        f"{a}\\sin\\left(2{name}\\right)",
        f"{2 * a}\\cos {name} \\sin {name}",
        f"\\frac{{{2 * a}\\tan {name}}}{{1+\\tan^2 {name}}}",
    ]
    wrong = [
        f"{a}\\cos 2{name}",
        f"{2 * a}\\sin {name}",
        f"{a + 1}\\sin 2{name}",
        f"-{a}\\sin 2{name}",
        f"{a}\\sin^2 {name}",
        f"{a}\\sin 2\\phi",
        f"{a}\\sin {name}\\cos {name}",
        f"{a}\\sin 3{name}",
        str(a),
        f"{a}\\sin 2{name} + 1",
    ]
    return gold, right, wrong


def complex_numbers(draw: random.Random) -> Made:
    a, b = whole(draw, -20, 20, 0), whole(draw, -20, 20, 0, 1, -1)
    while abs(a) == abs(b):
        b = whole(draw, -20, 20, 0, 1, -1)
    gold = f"{a}{plus(b)}i"
    right = [
        f"{b}i{plus(a)}",
        gold.replace(" ", ""),
        f"z = {gold}",
        f"{a} + i({b})",
        f"\\frac{{{2 * a}{plus(2 * b)}i}}{{2}}",
        f"{a}{plus(b)}\\mathrm{{i}}",
        f"-({-a}{plus(-b)}i)",
        f"({gold})(1+i)(1-i)/2",
        f"{a} - \\frac{{{b}}}{{i}}",
    ]
    wrong = [
        f"{a}{plus(-b)}i",
        f"{-a}{plus(b)}i",
        f"{b}{plus(a)}i",
        f"{a}{plus(b)}I",
        f"{a}{plus(b)}",
        f"{a + 1}{plus(b)}i",
        f"{a}{plus(b + 1) or ' + 50'}i",
        f"({a}, {b})",
        str(a * a + b * b),
        f"{a} \\pm {abs(b)}i",
        f"{a}{plus(b)}x",
        f"{gold}, {a}{plus(-b)}i",
    ]
    return gold, right, wrong


WORDS = [
    "Evelyn",
    "Navin",
    "Monday",
    "Tuesday",
    "east",
    "west",
    "north",
    "circle",
    "ellipse",
    "parabola",
    "hyperbola",
    "even",
    "odd",
    "red",
    "blue",
    "green",
    "square",
    "rectangle",
    "increasing",
    "decreasing",
    "convergent",
    "divergent",
    "rational",
    "irrational",
    "obtuse",
    "acute",
    "scalene",
    "isosceles",
    "positive",
    "negative",
    "always",
    "never",
    "sometimes",
    "triangle",
    "Alice",
    "Robert",
    "prime",
    "composite",
]


def texts(draw: random.Random) -> Made:
    word, other = draw.sample(WORDS, 2)
    right = [
        word,
        word.lower(),
        word.capitalize(),
        f"\\text{{{word.capitalize()}}}",
        f"\\textbf{{{word}}}",
        f"\\mathrm{{{word}}}",
        f"\\text{{ {word} }}",
        f"\\text{{{word}}}.",
        f"\\textit{{{word.upper()}}}",
    ]
    wrong = [
        other,
        f"\\text{{{other}}}",
        f"\\text{{not {word}}}",
        f"\\text{{{word} or {other}}}",
        f"\\text{{{word} and {other}}}",
        f"{word}, {other}",
        f"\\text{{{word}{word}}}",
        f"\\text{{{word[:-1]}}}",
        "1",
        f"\\text{{neither {word}}}",
        f"\\text{{I think it is {word}}}",
    ]
    return f"\\text{{{word}}}", right, wrong


def choices(draw: random.Random) -> Made:
    letter = draw.choice("ABCDE")
    other = draw.choice([one for one in "ABCDE" if one != letter])
    right = [
        letter,
        f"({letter})",
        f"\\text{{{letter}}}",
        f"\\textbf{{({letter})}}",
        f"\\mathrm{{({letter})}}",
        f"\\text{{ ({letter}) }}",
        f"\\textbf{{{letter}}}",
    ]
    wrong = [
        other,
        f"({other})",
        f"\\text{{({other})}}",
        f"\\text{{{letter} or {other}}}",
        f"{letter}, {other}",
        f"\\text{{not {letter}}}",
        f"{letter}{other}",
        f"\\text{{({letter}) and ({other})}}",
        "1",
    ]
    return f"\\text{{({letter})}}", right, wrong


def parts(draw: random.Random) -> Made:
    """Several values that belong to different letters."""
    a, b = draw.sample(range(-30, 60), 2)
    x, y = draw.choice([("x", "y"), ("a", "b"), ("m", "n"), ("p", "q")])
    right = [
        f"{x}={a},{y}={b}",
        f"{y} = {b}, {x} = {a}",
        f"{x} = {a} \\text{{ and }} {y} = {b}",
        f"{x}={a}; {y}={b}",
        f"{x} = {a}, \\; {y} = {b}",
    ]
    wrong = [
        f"{x} = {b}, {y} = {a}",
        f"{x} = {a}",
        f"{x} = {a}, {y} = {b + 1}",
        f"{x} = {-a - 1}, {y} = {b}",
        f"{x} = {a}, {x} = {b}",
        f"{x} = {a}, {y} = {b}, z = 1",
        f"{x} = {a}, {y} = {y}",
        f"{x.upper()} = {a}, {y.upper()} = {b}",
        f"{x} + {y} = {a + b}",
    ]
    return f"{x} = {a}, {y} = {b}", right, wrong


def logarithms(draw: random.Random) -> Made:
    a, k = draw.choice([2, 3, 5, 7, 11]), draw.randint(2, 9)
    right = [
        f"\\ln {a}^{k}",
        f"\\ln({a**k})",
        f"{k} \\ln({a})",
        f"\\ln {a**k}",
        f"{k}\\log_e {a}",
        f"-{k}\\ln\\frac{{1}}{{{a}}}",
        f"{k} ln {a}",
    ]
    import math

    wrong = [
        f"{k}\\ln {a + 1}",
        f"{k + 1}\\ln {a}",
        f"-{k}\\ln {a}",
        f"(\\ln {a})^{k}",
        f"{k * math.log(a):.6f}",
        f"{k}\\ln x",
        f"\\ln {a * k + 1000}",
        f"{k}",
        f"{k}\\log_2 {a}" if a != 2 else "3.5",
        f"{k * math.log(a):.2f}",
    ]
    return f"{k}\\ln {a}", right, wrong


KINDS: dict[str, tuple[Callable[[random.Random], Made], int]] = {
    "integer": (integers, 320),
    "fraction": (fractions, 320),
    "root": (roots, 220),
    "surd": (surds, 160),
    "plus-minus": (plus_minus, 120),
    "multiple of pi": (multiples_of_pi, 120),
    "logarithm": (logarithms, 60),
    "decimal": (decimals, 160),
    "scientific": (scientific, 160),
    "percent": (percents, 70),
    "money": (money, 80),
    "degree": (degrees, 100),
    "base": (bases, 120),
    "unit": (units, 240),
    "interval": (intervals, 240),
    "union": (unions, 120),
    "inequality": (inequalities, 140),
    "set or list": (sets, 240),
    "tuple": (tuples, 200),
    "list of tuples": (lists_of_tuples, 100),
    "matrix": (matrices, 180),
    "line": (lines, 220),
    "circle": (curves, 80),
    "named value": (named, 140),
    "equation of numbers": (truths, 50),
    "polynomial": (polynomials, 240),
    "rational expression": (rational_expressions, 120),
    "trigonometric": (trigonometric, 30),
    "complex": (complex_numbers, 160),
    "text": (texts, 60),
    "choice": (choices, 20),
    "several letters": (parts, 100),
}


def cases(share: float = 1.0) -> Iterator[dict]:
    """All of them, or a share of each kind."""
    for kind, (make, count) in KINDS.items():
        draw = random.Random(kind)
        golds: set[str] = set()
        for _ in range(max(1, round(count * share)) * 3):
            gold, right, wrong = make(draw)
            if gold in golds or len(golds) >= max(1, round(count * share)):
                continue
            golds.add(gold)
            right, wrong = [gold, *right], [one for one in wrong if one]
            yield {"kind": kind, "gold": gold, "right": right, "wrong": wrong}


def published(golds: list[str]) -> Iterator[dict]:
    """Golds of a published set: right as they are, wrong with more or with a digit changed."""
    for gold in dict.fromkeys(golds):
        digits = [i for i, one in enumerate(gold) if one.isdigit()]
        wrong = [f"{gold} \\text{{ or }} 918273", f"{gold}, 918273", "0=0", "1=1", "918273"]
        if digits:
            at = digits[-1]
            wrong.append(gold[:at] + str((int(gold[at]) + 1) % 10) + gold[at + 1 :])
        right = [
            gold,
            f"${gold}$",
            f" {gold} ",
            gold.replace("frac", "dfrac").replace("ddfrac", "dfrac"),
        ]
        yield {"kind": "published", "gold": gold, "right": right, "wrong": wrong}
