"""Cases whose gold is a polynomial or rational expression, or one with trigonometric,
exponential or logarithmic functions."""

import random
from fractions import Fraction as F

import sympy as sp

from unseen.core import frac
from unseen.gen_equations import rename, side

POLY = "polynomial and rational expressions"
TRIG = "expressions with trig, exp, log"


def poly_dict(p, x):
    """Coefficients of a sympy polynomial, highest power first."""
    P = sp.Poly(p, sp.Symbol(x))
    return {
        (x + ("" if e == 1 else "^%d" % e if e < 10 else "^{%d}" % e)) if e else "": F(
            int(c.p), int(c.q)
        )
        for (e,), c in P.terms()
    }


def factor(a, b, x):
    """a x + b in parentheses."""
    return "({})".format(side({x: F(a), "": F(b)}))


def more_wrong(s, x, r):
    """Wrong answers around any expression s in x."""
    return r.sample(
        [
            s + " + 1",
            s + " - 2",
            "1 + " + s,
            f"-({s})",
            f"2({s})",
            f"({s})^2",
            f"\\frac{{1}}{{{s}}}",
            s + " + C",
            s + " \\text{ or } 0",
            s + ", 0",
            "\\neq " + s,
            "not " + s,
            "0",
            "1",
            x,
            f"\\pm ({s})",
            s + " + " + x,
            s + " + \\frac{1}{100}",
            f"|{s}| + 1",
        ],
        6,
    )


def letters_wrong(s, x, r):
    """The same expression in another letter or letter case (only without commands)."""
    return (
        []
        if "\\" in s.replace("\\frac", "").replace("\\dfrac", "")
        else [
            rename_safe(s, x, x.upper() if x.islower() else x.lower()),
            rename_safe(s, x, "q"),
        ]
    )


def rename_safe(s, x, y):
    t = s.replace("\\frac", "\x01").replace("\\dfrac", "\x02")
    return rename(t, {x: y}).replace("\x01", "\\frac").replace("\x02", "\\dfrac")


def polynomials(book, n=75):
    """Expanded and factored polynomials in one letter."""
    r = random.Random(801)
    done = 0
    while done < n:
        x = r.choice("xxxxntkrzmaR")
        X = sp.Symbol(x)
        if r.random() < 0.5:
            fs = [
                (
                    r.choice([1, 1, 1, 2, 3]),
                    r.choice([-7, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 8, 9]),
                )
                for _ in range(r.choice([2, 2, 3]))
            ]
            lead = r.choice([1, 1, 1, 2, 3, -1, 5])
            v = lead * sp.prod([a * X + b for a, b in fs])
            pre = {1: "", -1: "-"}.get(lead, str(lead))

            def put(fs, pre=pre):
                return pre + "".join(factor(a, b, x) for a, b in fs)

            d = poly_dict(v, x)
            s = side(d)
            gold = r.choice([put(fs), put(fs), s])
            right = [
                (put(fs), v),
                (put(fs[::-1]), v),
                (s, v),
                (side(d, list(d)[::-1]), v),
                (f"${put(fs)}$", v),
                (put(fs).replace(")(", ") (").replace(")(", ")\\cdot("), v),
                (s.replace(" ", ""), v),
                (put(fs).replace(")(", ")\\cdot("), v),
            ]
            wrong = []
            for _ in range(5):
                g = [list(f) for f in fs]
                i = r.randrange(len(g))
                g[i][1] = r.choice([-g[i][1], g[i][1] + 1 or 2, g[i][1] - 1 or -2])
                wrong.append((put(g), lead * sp.prod([a * X + b for a, b in g])))
            wrong += [(put(fs[1:]), v / (fs[0][0] * X + fs[0][1])), (f"-({s})", -v)]
        else:
            deg = r.choice([1, 2, 2, 3, 3, 4, 5, 8])
            cs = [
                r.choice(
                    [
                        0,
                        1,
                        -1,
                        r.randint(-9, 9),
                        r.randint(-30, 30),
                        F(r.randint(1, 9), r.choice([2, 3, 4])),
                    ]
                )
                for _ in range(deg)
            ] + [r.choice([1, 2, -1, 3, F(1, 2)])]
            v = sum(sp.Rational(F(c).numerator, F(c).denominator) * X**i for i, c in enumerate(cs))
            d = poly_dict(v, x)
            if len(d) < 2:
                continue
            s = gold = side(d)
            gold = gold.replace(" ", "") if r.random() < 0.4 else gold
            mix = list(d)
            r.shuffle(mix)
            den = 1
            for c in d.values():
                den = den * c.denominator
            right = [
                (s, v),
                (s.replace(" ", ""), v),
                (side(d, list(d)[::-1]), v),
                (side(d, mix), v),
                (f"${s}$", v),
                (side(d, cmd="\\dfrac"), v),
            ]
            if den > 1:
                right.append(
                    ("\\frac{%s}{%d}" % (side({k: c * den for k, c in d.items()}), den), v)
                )
            if "" not in d:
                right.append((f"{x}({side(poly_dict(sp.expand(v / X), x))})" if deg > 1 else s, v))
            wrong = []
        for k in r.sample(list(d), min(3, len(d))):
            for w in (-d[k], d[k] + 1, d[k] * 2, F(0)):
                e = dict(d, **{k: w})
                wrong.append(
                    (
                        side(e),
                        sum(
                            (
                                sp.Rational(c.numerator, c.denominator)
                                * X
                                ** (
                                    0
                                    if not t
                                    else 1
                                    if t == x
                                    else int(t.split("^")[1].strip("{}"))
                                )
                                for t, c in e.items()
                            ),
                            sp.Integer(0),
                        ),
                    )
                )
        wrong = r.sample(wrong, min(len(wrong), 7)) + letters_wrong(s, x, r)
        lead_t = next(iter(d))
        if "^" in lead_t:
            p = int(lead_t.split("^")[1].strip("{}"))
            wrong.append(
                side({(x + "^{%d}" % (p + 1)) if k == lead_t else k: c for k, c in d.items()})
            )
        wrong += more_wrong(s, x, r)[:3] if x in s else []
        wrong = [w for w in wrong if isinstance(w, tuple) or w not in ("0", "1", x)]
        done += book.add(POLY, gold, right, wrong, v, r)


def rationals(book, n=50):
    """Quotients of polynomials, partial fractions, and cancelled forms."""
    r = random.Random(802)
    done = 0
    while done < n:
        x = r.choice("xxxxtnka")
        X = sp.Symbol(x)
        a, b = r.choice([1, 1, 2, 3]), r.randint(-6, 7)
        c, d = r.choice([1, 1, 2]), r.choice([-5, -3, -2, -1, 1, 2, 3, 4, 7])
        e = r.choice([-4, -1, 1, 3, 5])

        def L(a, b):
            return side({x: F(a), "": F(b)})

        num, den = a * X + b, c * X + d
        if sp.simplify(num / den).is_number:
            continue
        v = num / den

        def put(a, b, c, d):
            return (f"\\frac{{{L(a, b)}}}{{{L(c, d)}}}", (a * X + b) / (c * X + d))

        s = put(a, b, c, d)[0]
        if r.random() < 0.5:
            gold = s
            q, rem = F(a, c), F(b) - F(a, c) * d
            right = [
                (s.replace("\\frac", "\\dfrac"), v),
                (f"({L(a, b)})/({L(c, d)})", v),
                (f"\\frac{{{L(-a, -b)}}}{{{L(-c, -d)}}}", v),
                (f"-\\frac{{{L(-a, -b)}}}{{{L(c, d)}}}", v),
                (f"${s}$", v),
                (f"\\frac{{{L(2 * a, 2 * b)}}}{{{L(2 * c, 2 * d)}}}", v),
                (f"\\frac{{({L(a, b)})({L(1, e)})}}{{({L(c, d)})({L(1, e)})}}", v),
                (
                    "\\frac{{{}}}{{{}}}".format(
                        side({"": F(b), x: F(a)}), side({"": F(d), x: F(c)})
                    ),
                    v,
                ),
                (
                    f"{frac(q)} + \\frac{{{frac(rem)}}}{{{L(c, d)}}}"
                    if rem.denominator == 1 and rem > 0
                    else s,
                    v,
                ),
            ]
            wrong = [
                put(*w)
                for w in [
                    (a, -b, c, d),
                    (a, b, c, -d),
                    (c, d, a, b),
                    (a, b + 1, c, d),
                    (a + 1, b, c, d),
                    (a, b, c, d + 1),
                    (-a, -b, c, d),
                    (a, b, c + 1, d),
                ]
                if w[2] or w[3]
            ]
            wrong += [(L(a, b), num), (f"\\frac{{1}}{{{L(c, d)}}}", 1 / den), (s + " + 1", v + 1)]
        else:
            if sp.simplify(e - sp.Rational(d, c)) == 0:
                continue
            v = 1 / den + sp.Integer(a) / (X + e)
            w2 = sp.expand((X + e) + a * den)
            nd = side(poly_dict(w2, x))

            def one(p, c, d, q, e, op="+"):
                return (
                    "\\frac{%d}{%s} %s \\frac{%d}{%s}" % (p, L(c, d), op, q, L(1, e)),
                    p / (c * X + d) + (q if op == "+" else -q) / (X + e),
                )

            gold = s = one(1, c, d, a, e)[0]
            right = [
                ("\\frac{%d}{%s}+\\frac{1}{%s}" % (a, L(1, e), L(c, d)), v),
                (f"\\frac{{{nd}}}{{({L(c, d)})({L(1, e)})}}", v),
                (f"\\frac{{{nd}}}{{{side(poly_dict(sp.expand(den * (X + e)), x))}}}", v),
                (s.replace("\\frac", "\\dfrac"), v),
                ("1/(%s) + %d/(%s)" % (L(c, d), a, L(1, e)), v),
                (f"${s}$", v),
            ]
            wrong = [
                one(*w)
                for w in [
                    (1, c, d, a, e, "-"),
                    (2, c, d, a, e),
                    (1, c, d, a + 1, e),
                    (1, c, -d, a, e),
                    (1, c, d, a, -e),
                    (1, c, d + 1, a, e),
                    (a, c, d, 1, e),
                    (-1, c, d, a, e),
                ]
            ] + [
                (f"\\frac{{1}}{{{L(c, d)}}}", 1 / den),
                (
                    "\\frac{%d}{%s}" % (a + 1, side(poly_dict(sp.expand(den + X + e), x))),
                    (a + 1) / (den + X + e),
                ),
            ]
        wrong += letters_wrong(s, x, r) + more_wrong(s, x, r)[:2]
        wrong = [w for w in wrong if isinstance(w, tuple) or w not in ("0", "1", x)]
        done += book.add(POLY, gold, right, wrong, v, r)


def functions(book):
    """Templates with sin, cos, tan, exp, ln, each filled with several numbers."""
    random.Random(803)

    def k(n):
        return "" if n == 1 else str(n)

    for a, b in [
        (2, 3),
        (1, 2),
        (3, 1),
        (5, 2),
        (4, 3),
        (1, 5),
        (6, 7),
        (2, 9),
        (7, 3),
        (8, 5),
        (3, 8),
        (6, 5),
    ]:
        A, B = k(a), k(b)
        cases = [
            (
                f"{A}\\sin {B}x",
                [
                    f"{A}\\sin({B}x)",
                    f"{A}\\sin{{{B}x}}",
                    f"{A} \\sin \\left({B}x\\right)",
                    f"{A}\\cos\\left({B}x-\\frac{{\\pi}}{{2}}\\right)",
                ]
                + (["%d \\cdot \\sin(%sx)" % (a, B)] if a > 1 else []),
                [
                    f"{A}\\cos {B}x",
                    f"-{A}\\sin {B}x",
                    "%d\\sin %sx" % (a + 1, B),
                    "%s\\sin %dx" % (A, b + 1),
                    f"{A}\\sin^2 {B}x",
                    f"{A}\\sin {B}y",
                    f"{A}\\sin {B}X",
                    f"{A}\\sin {B}x + 1",
                    f"{k(a * b)}x",
                    f"{A}\\sinh {B}x",
                    f"{A}\\tan {B}x",
                    f"{A}\\sin {B}x + C",
                    f"{A}\\csc {B}x",
                ],
            ),
            (
                f"{A}e^{{{B}x}}",
                [
                    f"{A} e^{{{B}x}}",
                    f"{A}\\exp({B}x)",
                    "%s(e^x)^{%d}" % (A, b),
                    f"{A}\\,e^{{{B} x}}",
                    "\\frac{%d}{e^{-%sx}}" % (a, B),
                    f"{A}\\mathrm{{e}}^{{{B}x}}",
                ],
                [
                    f"{A}e^{{-{B}x}}",
                    "%se^{%dx}" % (A, b + 1),
                    "%de^{%sx}" % (a + 1, B),
                    f"-{A}e^{{{B}x}}",
                    f"{A}e^{{{B}y}}",
                    f"{A}e^{{{B}x}}+1",
                    f"{A}e^{{{B}x^2}}",
                    f"{a}\\cdot 2.718^{{{B}x}}",
                    f"{A}E^{{{B}x}}",
                    "%se^{%d}x" % (A, b),
                    f"{A}x e^{{{B}x}}",
                    f"{A}\\ln({B}x)",
                    f"{a}\\cdot 10^{{{B}x}}",
                ],
            ),
            (
                "%s\\ln(x+%d)" % (A, b),
                [
                    "%s \\ln(x + %d)" % (A, b),
                    "%s\\ln\\left(%d+x\\right)" % (A, b),
                    "%s\\ln(%d+x)" % (A, b),
                    "-%s\\ln\\frac{1}{x+%d}" % (A, b),
                    "%s\\log_e(x+%d)" % (A, b),
                ]
                + (["\\ln\\left((x+%d)^{%d}\\right)" % (b, a)] if a > 1 else []),
                [
                    "%s\\ln(x-%d)" % (A, b),
                    "%s\\ln x+%d" % (A, b),
                    "-%s\\ln(x+%d)" % (A, b),
                    "%s\\ln(x+%d)" % (A, b + 1),
                    "%d\\ln(x+%d)" % (a + 1, b),
                    "%s\\ln(y+%d)" % (A, b),
                    "%s\\log_{10}(x+%d)" % (A, b),
                    "%s\\ln x + \\ln %d" % (A, b + 3),
                    "%s\\ln(x+%d)+1" % (A, b),
                    "%s(x+%d)" % (A, b),
                    "\\frac{%d}{x+%d}" % (a, b),
                    "%s\\log_2(x+%d)" % (A, b),
                    "%se^{x+%d}" % (A, b),
                ],
            ),
            (
                "%s\\cos^2 x + %d" % (A, b),
                [
                    "%d + %s\\cos^2 x" % (b, A),
                    "%s(\\cos x)^2 + %d" % (A, b),
                    "%s\\cos^{2}(x)+%d" % (A, b),
                    "%d - %s\\sin^2 x" % (a + b, A),
                    "\\frac{%d}{2}(1+\\cos 2x)+%d" % (a, b),
                ],
                [
                    "%s\\sin^2 x + %d" % (A, b),
                    "%s\\cos^2 x - %d" % (A, b),
                    "%s\\cos^2 x + %d" % (A, b + 1),
                    "%d\\cos^2 x + %d" % (a + 1, b),
                    "%s\\cos x + %d" % (A, b),
                    "%d" % (a + b),
                    f"{A}\\cos^2 x",
                    "%s\\cos^2 y + %d" % (A, b),
                    "%s\\cos^2 x + %d + C" % (A, b),
                    "-%s\\cos^2 x + %d" % (A, b),
                    "%s\\cos^2 2x + %d" % (A, b),
                    "%s\\cos^3 x + %d" % (A, b),
                ],
            ),
            (
                "x^%d\\ln x + C" % (a + 1),
                [
                    "C + x^%d\\ln x" % (a + 1),
                    "x^{%d} \\ln(x) + C" % (a + 1),
                    "x^%d\\ln{x}+C" % (a + 1),
                    "\\ln(x) \\cdot x^{%d} + C" % (a + 1),
                ],
                [
                    "x^%d\\ln x" % (a + 1),
                    "x^%d\\ln x + 1" % (a + 1),
                    "x^%d\\ln x - x + C" % (a + 1),
                    "x^%d\\ln x + x + C" % (a + 1),
                    "-x^%d\\ln x + C" % (a + 1),
                    "\\ln x + C",
                    "x^%d + C" % (a + 1),
                    "x^%d\\ln x + Cx" % (a + 1),
                    "x^%d\\ln x + 2x^2 + C" % (a + 1),
                    "x^%d e^x + C" % (a + 1),
                    "x^%d\\ln y + C" % (a + 1),
                    "C",
                    "x^%d\\ln x + D\\ln x" % (a + 1),
                ],
            ),
            (
                "\\frac{\\sin %sx}{x^%d}" % (B, a + 1),
                [
                    "\\dfrac{\\sin(%sx)}{x^{%d}}" % (B, a + 1),
                    "x^{-%d}\\sin %sx" % (a + 1, B),
                    "\\frac{1}{x^%d}\\sin(%sx)" % (a + 1, B),
                    "\\frac{\\sin{%sx}}{x^{%d}}" % (B, a + 1),
                ],
                [
                    "\\frac{\\cos %sx}{x^%d}" % (B, a + 1),
                    "\\frac{\\sin %sx}{x^%d}" % (B, a + 2),
                    "-\\frac{\\sin %sx}{x^%d}" % (B, a + 1),
                    "\\frac{x^%d}{\\sin %sx}" % (a + 1, B),
                    "\\frac{\\sin %dx}{x^%d}" % (b + 1, a + 1),
                    "x^%d\\sin %sx" % (a + 1, B),
                    "\\frac{\\sin %st}{t^%d}" % (B, a + 1),
                    "\\frac{\\sin %sx}{x^%d}+1" % (B, a + 1),
                    "\\frac{\\sin %sx}{%dx}" % (B, a + 1),
                    f"\\sin {B}x",
                    "%d" % b,
                ],
            ),
            (
                f"{A}\\tan {B}x",
                [
                    f"{A}\\tan({B}x)",
                    f"{A}\\frac{{\\sin {B}x}}{{\\cos {B}x}}",
                    "\\frac{%d}{\\cot %sx}" % (a, B),
                    f"{A} \\tan{{{B}x}}",
                ],
                [
                    f"{A}\\cot {B}x",
                    f"-{A}\\tan {B}x",
                    "%d\\tan %sx" % (a + 1, B),
                    "%s\\tan %dx" % (A, b + 1),
                    f"{A}\\tan^2 {B}x",
                    f"{A}\\tan {B}y",
                    f"{A}\\sec {B}x",
                    f"{A}\\tan {B}x + 1",
                    f"{A}\\arctan {B}x",
                    f"{A}\\tanh {B}x",
                    f"{A}\\frac{{\\cos {B}x}}{{\\sin {B}x}}",
                ],
            ),
            (
                "%d^{%sx}" % (a + 1, B),
                [
                    "%d^{%s x}" % (a + 1, B),
                    "e^{%sx\\ln %d}" % (B, a + 1),
                    "\\left(%d^{x}\\right)^{%d}" % (a + 1, b),
                    "(%d^x)^{%d}" % (a + 1, b),
                ]
                + (["%d^x" % (a + 1) ** b] if b > 1 else []),
                [
                    "%d^{%dx}" % (a + 1, b + 1),
                    "%d^{-%sx}" % (a + 1, B),
                    "%d^{%sx}" % (a + 2, B),
                    "(%sx)^{%d}" % (B, a + 1),
                    "%d^{%sy}" % (a + 1, B),
                    "%d^{%sx}+1" % (a + 1, B),
                    "-%d^{%sx}" % (a + 1, B),
                    "%dx" % ((a + 1) * b),
                    "%d^{%sx^2}" % (a + 1, B),
                    "%d^{x+%d}" % (a + 1, b + 3),
                    f"e^{{{B}x}}",
                    "%d^{%d}x" % (a + 1, b),
                ],
            ),
        ]
        for g, ri, wr in cases:
            book.add(TRIG, g, [*ri, f"${g}$"], wr, max_wrong=12)
    for s, c, w in [
        (
            "1",
            ["\\sin^2 x+\\cos^2 x", "\\sin^2x + \\cos^2x"],
            [
                "\\sin^2 x-\\cos^2 x",
                "\\sin x+\\cos x",
                "2",
                "-1",
                "\\sin^2 x",
                "\\sin^2 x+\\cos^2 y",
            ],
        ),
        (
            "\\cot x",
            [
                "\\frac{\\cos x}{\\sin x}",
                "\\frac{1}{\\tan x}",
                "\\cot(x)",
                "(\\tan x)^{-1}",
                "\\cot{x}",
            ],
            [
                "\\tan x",
                "-\\cot x",
                "\\frac{\\sin x}{\\cos x}",
                "\\arctan x",
                "\\cot y",
                "\\cot 2x",
                "\\csc x",
                "\\cot^2 x",
                "\\tan^{-1} x",
            ],
        ),
        (
            "\\sec^2 x",
            ["\\frac{1}{\\cos^2 x}", "1+\\tan^2 x", "\\sec^{2}(x)", "(\\sec x)^2"],
            [
                "\\sec x",
                "\\cos^2 x",
                "\\csc^2 x",
                "\\tan^2 x",
                "1-\\tan^2 x",
                "-\\sec^2 x",
                "\\sec^2 y",
            ],
        ),
        (
            "\\sin 2x",
            ["2\\sin x\\cos x", "\\sin(2x)", "2\\cos x\\sin x", "\\sin{2x}"],
            [
                "2\\sin x",
                "\\sin x\\cos x",
                "\\cos 2x",
                "\\sin^2 x",
                "\\sin x",
                "-\\sin 2x",
                "2\\sin x\\cos y",
            ],
        ),
        (
            "\\cos 2x",
            ["1-2\\sin^2 x", "2\\cos^2 x-1", "\\cos^2 x-\\sin^2 x", "\\cos(2x)"],
            [
                "2\\cos x",
                "1-\\sin^2 x",
                "\\cos^2 x+\\sin^2 x",
                "\\sin 2x",
                "2\\cos^2 x+1",
                "-\\cos 2x",
                "\\cos^2 x",
            ],
        ),
        (
            "\\arcsin x",
            ["\\sin^{-1} x", "\\arcsin(x)", "\\frac{\\pi}{2}-\\arccos x", "\\sin^{-1}(x)"],
            [
                "\\frac{1}{\\sin x}",
                "\\csc x",
                "\\arccos x",
                "\\sin x",
                "-\\arcsin x",
                "\\arctan x",
                "\\arcsin y",
                "(\\sin x)^{-1}",
            ],
        ),
        (
            "\\frac{e^x+e^{-x}}{2}",
            [
                "\\cosh x",
                "\\frac{1}{2}(e^x+e^{-x})",
                "\\frac{e^{2x}+1}{2e^x}",
                "\\dfrac{e^{-x}+e^{x}}{2}",
            ],
            [
                "\\sinh x",
                "\\frac{e^x-e^{-x}}{2}",
                "e^x+e^{-x}",
                "\\cos x",
                "1",
                "\\frac{e^x+e^{x}}{2}",
                "\\frac{e^y+e^{-y}}{2}",
                "\\frac{e^x+e^{-x}}{3}",
            ],
        ),
        (
            "x e^{-x}",
            ["xe^{-x}", "\\frac{x}{e^x}", "x\\exp(-x)", "e^{-x}x", "x \\cdot e^{-x}"],
            [
                "xe^x",
                "e^{-x}",
                "-xe^{-x}",
                "xe^{-x}+C",
                "x+e^{-x}",
                "2xe^{-x}",
                "xe^{-2x}",
                "ye^{-y}",
                "xe^{-x}+1",
            ],
        ),
    ]:
        book.add(TRIG, s, c, w)


def build(book):
    polynomials(book)
    rationals(book)
    functions(book)
