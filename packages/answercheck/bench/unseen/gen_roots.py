"""Cases whose gold is an exact irrational number or a power, or a number in scientific notation."""

import random
from fractions import Fraction as F

import sympy as sp

from unseen.core import decimal, frac, hedges

R = sp.Rational


def surd(q, n, cmd="\\sqrt{%d}", r=None):
    """Spelling of q*sqrt(n) with rational q."""
    q = F(q)
    a, b = abs(q.numerator), q.denominator
    s = "-" if q < 0 else ""
    root = cmd % n
    top = root if a == 1 else "%d%s" % (a, root)
    return s + (top if b == 1 else "\\frac{%s}{%d}" % (top, b))


def surd_forms(q, n):
    """Equal spellings of q*sqrt(n), each with its value."""
    q = F(q)
    a, b, s = abs(q.numerator), q.denominator, "-" if q < 0 else ""
    v = R(q.numerator, q.denominator) * sp.sqrt(n)
    out = [surd(q, n).replace("\\frac", "\\dfrac"), f"${surd(q, n)}$", "x = " + surd(q, n)]
    if n < 10:
        out.append(surd(q, n, "\\sqrt%d"))
    if a > 1:
        out += [
            surd(q, n).replace("\\sqrt", " \\sqrt"),
            surd(q, n).replace("\\sqrt", "\\cdot\\sqrt"),
            surd(q, n).replace("\\sqrt", "\\,\\sqrt"),
        ]
    if b == 1:
        out += [
            "%s\\sqrt{%d}" % (s, a * a * n),
            "%s%d\\times %d^{1/2}" % (s, a, n) if a > 1 else "%s%d^{\\frac{1}{2}}" % (s, n),
            "%s\\sqrt{%d}\\cdot %d" % (s, n, a),
        ]
    else:
        out += [
            "%s\\frac{%d}{%d}\\sqrt{%d}" % (s, a, b, n),
            "%s%s/%d" % (s, surd(a, n), b),
            "%s\\sqrt{\\frac{%d}{%d}}" % (s, a * a * n, b * b),
            "%s\\frac{%d}{%d\\sqrt{%d}}" % (s, a * n, b, n),
        ]
        if terminatesish(b):
            out.append("%s%s\\sqrt{%d}" % (s, decimal(F(a, b)), n))
    return [(o, v) for o in out]


def terminatesish(b):
    return b in (2, 4, 5, 8, 10, 20)


def roots(book, n=75):
    """Multiples of square roots and sums of a rational and a root."""
    r = random.Random(201)
    kind = "roots and powers"
    free = [2, 3, 5, 6, 7, 10, 11, 13, 14, 15, 17, 19, 21, 51, 53, 66]
    done = 0
    while done < n:
        m = r.choice(free)
        q = F(r.randint(1, 15), r.choice([1, 1, 1, 2, 3, 4, 5])) * r.choice([1, 1, 1, -1])
        v = R(q.numerator, q.denominator) * sp.sqrt(m)
        rq = R(q.numerator, q.denominator)
        if r.random() < 0.55:
            gold = surd(q, m)
            right = surd_forms(q, m)
            wrong = [
                (surd(a, b), R(a.numerator, a.denominator) * sp.sqrt(b))
                for a, b in [
                    (-q, m),
                    (q + 1, m),
                    (1 / q, m),
                    (q, m + 1),
                    (q, 2 * m),
                    (q * m, m),
                    (q / 2, m),
                    (q * 10, m),
                ]
                if a
            ]
            wrong += [
                (f"\\sqrt{{{frac(abs(q) * m)}}}", sp.sqrt(abs(rq) * m)),
                (frac(q * m), rq * m),
                (f"{float(v):.3f}", "rounded"),
                (f"{float(v):.2f}", "rounded"),
                (f"{float(v):.8f}", "rounded"),
                (frac(q) + "\\sqrt[3]{%d}" % m, rq * sp.cbrt(m)),
            ]
            wrong += [
                *r.sample(hedges(gold, surd(q + 2, m), r), 3),
                gold + "\\pi",
                gold + " i",
                gold + "x",
                gold + " + 1",
            ]
        else:
            a = F(r.randint(-9, 12), r.choice([1, 1, 1, q.denominator]))
            if a == 0:
                continue
            av = R(a.numerator, a.denominator)
            t = surd(abs(q), m)
            op = "-" if q < 0 else "+"
            gold = f"{frac(a)}{op}{t}"
            v = av + v
            b = q.denominator
            whole = (
                "%d%s%s" % (a * b, op, surd(abs(q) * b, m)) if (a * b).denominator == 1 else None
            )
            right = [
                (f"{frac(a)} {op} {t}", v),
                (f"${gold}$", v),
                (gold.replace("\\sqrt", "\\,\\sqrt"), v),
                (gold.replace("\\frac", "\\dfrac"), v),
                ("{}{}{}".format(surd(q, m), "-" if a < 0 else "+", frac(abs(a))), v),
                (f"x={gold}", v),
            ]
            if whole and b > 1:
                right += [
                    ("\\frac{%s}{%d}" % (whole, b), v),
                    ("(%s)/%d" % (whole, b), v),
                    ("\\frac{1}{%d}(%s)" % (b, whole), v),
                ]
                gold = r.choice([gold, "\\frac{%s}{%d}" % (whole, b)])
            right.append((f"{frac(a)} {op} \\sqrt{{{frac(q * q * m)}}}", v))

            def mk(c, d, k):
                return (
                    "{}{}{}".format(frac(c) if c else "", "-" if d < 0 else "+", surd(abs(d), k)),
                    R(c.numerator, c.denominator) + R(d.numerator, d.denominator) * sp.sqrt(k),
                )

            wrong = [
                mk(a, -q, m),
                mk(-a, q, m),
                mk(-a, -q, m),
                mk(a + 1, q, m),
                mk(a, q + 1, m) if q != -1 else mk(a, F(5), m),
                mk(a, q, m + 1),
                mk(q, a, m),
                (surd(q, m), v - av),
                (frac(a), av),
                (f"{float(v):.3f}", "rounded"),
                (f"{float(v):.6f}", "rounded"),
                (f"{frac(a)} \\pm {t}", "both"),
                (
                    "{}{}{}, {}{}{}".format(frac(a), op, t, frac(a), "-" if op == "+" else "+", t),
                    "both",
                ),
            ]
            wrong += r.sample(hedges(gold, frac(a), r), 2)
        done += book.add(kind, gold, right, wrong, v, r)


def powers(book):
    """Cube roots, powers, powers of pi and e, logarithms and trig values as numbers."""
    kind = "roots and powers"
    for b, e in [
        (2, 10),
        (3, 7),
        (5, 6),
        (2, 16),
        (7, 4),
        (6, 5),
        (10, 6),
        (2, 12),
        (3, 5),
        (11, 3),
        (10, 9),
        (4, 5),
    ]:
        v = b**e
        book.add(
            kind,
            "%d^{%d}" % (b, e),
            ["%d" % v, "{%d}^{%d}" % (b, e), "$%d^{%d}$" % (b, e), format(v, ","), "%d.0" % v],
            [
                ("%d^{%d}" % (e, b), e**b),
                ("%d^{-%d}" % (b, e), F(1, v)),
                ("-%d^{%d}" % (b, e), -v),
                ("%d^{%d}" % (b, e + 1), v * b),
                ("%d" % (b * e), b * e),
                ("%d" % (v + 1), v + 1),
                ("%d%d" % (b, e), int("%d%d" % (b, e))),
                ("\\frac{1}{%d^{%d}}" % (b, e), F(1, v)),
                ("%d" % (v * 10), v * 10),
                ("%d^{%d} - 1" % (b, e), v - 1),
                ("%d^{%d}" % (b + 1, e), (b + 1) ** e),
            ],
            v,
        )
    for c, k, n in [
        (2, 3, 2),
        (3, 3, 2),
        (1, 3, 4),
        (2, 3, 5),
        (5, 3, 3),
        (1, 4, 2),
        (3, 4, 5),
        (1, 5, 6),
        (4, 3, 7),
        (1, 3, 2),
    ]:

        def f(c, k, n):
            return ("%s\\sqrt[%d]{%d}" % ("" if c == 1 else c, k, n), c * sp.root(n, k))

        g, v = f(c, k, n)
        book.add(
            kind,
            g,
            [
                ("\\sqrt[%d]{%d}" % (k, c**k * n), v),
                ("%s%d^{1/%d}" % ("" if c == 1 else "%d\\cdot " % c, n, k), v),
                (f"${g}$", v),
                ("%s%d^{\\frac{1}{%d}}" % ("" if c == 1 else "%d \\times " % c, n, k), v),
                (g.replace("\\sqrt", "\\,\\sqrt"), v),
                ("\\sqrt[{%d}]{%d}" % (k, c**k * n), v),
            ],
            [
                f(c, k + 1, n),
                f(c + 1, k, n),
                f(c, k, n + 1),
                ("%s\\sqrt{%d}" % ("" if c == 1 else c, n), c * sp.sqrt(n)),
                ("-" + g, -v),
                ("\\sqrt[%d]{%d}" % (k, c * n), sp.root(c * n, k)),
                (f"{float(v):.3f}", 0),
                (f"{float(v):.7f}", 0),
                (f"\\frac{{1}}{{{g}}}", 1 / v),
                ("%d" % (c**k * n), c**k * n),
                (f"{g} + 1", v + 1),
                "\\pm " + g,
            ],
            v,
        )
    for q, tail, w, _t in [
        (F(q), tail, w, t)
        for q, tail, w, t in [
            (12, "\\pi", sp.pi, ""),
            (7, "\\pi", sp.pi, ""),
            (288, "\\pi", sp.pi, ""),
            (F(3, 4), "\\pi", sp.pi, ""),
            (F(-1, 6), "\\pi", sp.pi, ""),
            (F(5, 2), "\\pi", sp.pi, ""),
            (1, "\\pi", sp.pi, ""),
            (F(2, 3), "\\pi^2", sp.pi**2, ""),
            (4, "\\pi^2", sp.pi**2, ""),
            (3, "e", sp.E, ""),
            (F(1, 2), "e^2", sp.E**2, ""),
            (5, "\\ln 2", sp.log(2), ""),
            (F(3, 2), "\\ln 3", sp.log(3), ""),
            (F(7, 3), "\\pi", sp.pi, ""),
            (F(11, 6), "\\pi", sp.pi, ""),
        ]
    ]:

        def fm(q, tail=tail):
            return (
                ("-" if q < 0 else "")
                + (
                    "{}{}".format("" if abs(q.numerator) == 1 else abs(q.numerator), tail)
                    if q.denominator == 1
                    else "\\frac{%s%s}{%d}"
                    % ("" if abs(q.numerator) == 1 else abs(q.numerator), tail, q.denominator)
                ),
                R(q.numerator, q.denominator) * w,
            )

        g, v = fm(q)
        right = [
            (f"${g}$", v),
            (g.replace("\\frac", "\\dfrac"), v),
            ("x = " + g, v),
            ("{} {}".format(frac(q) if q != 1 else "1 \\cdot", tail), v),
            (f"{frac(q)} \\cdot {tail}", v),
            ("\\frac{%d%s}{%d}" % (2 * q.numerator, tail, 2 * q.denominator), v),
        ]
        wrong = [
            fm(-q),
            fm(q + 1) if q != -1 else fm(q + 2),
            fm(1 / q),
            fm(2 * q),
            fm(q / 2),
            fm(10 * q),
            (frac(q), R(q.numerator, q.denominator)),
            (f"{float(v):.2f}", 0),
            (f"{float(v):.6f}", 0),
            (f"{frac(q)} + {tail}", R(q.numerator, q.denominator) + w),
            (g + "^2" if not g.endswith("}") and tail[-1] != "2" else "2" + g, 0),
            (
                "\\frac{%d}{%d%s}" % (q.numerator, q.denominator, tail),
                R(q.numerator, q.denominator) / w,
            ),
            g + " + 2",
            "\\neq " + g,
            g + ", 0",
        ]
        book.add(kind, g, right, wrong, v)
    hand = [
        (
            "\\log_2 3",
            ["\\log_{2}{3}", "\\log_2(3)", "\\frac{\\ln 3}{\\ln 2}", "\\log_{2} 3"],
            [
                "\\log_3 2",
                "\\ln 3",
                "1.585",
                "\\log_2 4",
                "-\\log_2 3",
                "\\log_2 3 + 1",
                "\\frac{\\ln 2}{\\ln 3}",
                "\\log_{20} 3",
            ],
        ),
        (
            "\\ln 2",
            ["\\ln(2)", "\\ln{2}", "\\log_e 2", "$\\ln 2$", "-\\ln\\frac{1}{2}"],
            [
                "\\ln 3",
                "0.693",
                "-\\ln 2",
                "\\log_{10} 2",
                "\\log_2 e",
                "\\ln 2 + 1",
                "2\\ln 2",
                "\\ln^2 2",
                "0.6931471806",
            ],
        ),
        (
            "\\sin 20^\\circ",
            ["\\sin(20^\\circ)", "\\sin 20^{\\circ}", "\\cos 70^\\circ", "\\sin\\frac{\\pi}{9}"],
            [
                "\\cos 20^\\circ",
                "\\sin 70^\\circ",
                "-\\sin 20^\\circ",
                "0.342",
                "\\sin 10^\\circ",
                "\\tan 20^\\circ",
                "\\sin^2 20^\\circ",
            ],
        ),
        (
            "\\arctan 2",
            [
                "\\tan^{-1} 2",
                "\\arctan(2)",
                "\\tan^{-1}(2)",
                "\\arctan{2}",
                "\\frac{\\pi}{2}-\\arctan\\frac{1}{2}",
            ],
            [
                "\\arctan\\frac{1}{2}",
                "\\tan 2",
                "\\arcsin 2",
                "-\\arctan 2",
                "1.107",
                "\\frac{1}{\\tan 2}",
                "\\arctan 3",
                "\\arctan 2 + \\pi",
            ],
        ),
        (
            "e",
            ["e^1", "$e$", "\\mathrm{e}", "\\exp(1)"],
            [
                "2.718",
                "2.71828",
                "e^2",
                "-e",
                "\\frac{1}{e}",
                "\\pi",
                "E",
                "x",
                "e+1",
                "2.718281828459045",
            ],
        ),
        (
            "\\frac{1}{e}",
            ["e^{-1}", "1/e", "\\dfrac{1}{e}", "\\exp(-1)"],
            [
                "e",
                "0.368",
                "-\\frac{1}{e}",
                "\\frac{1}{e^2}",
                "\\frac{2}{e}",
                "1-\\frac{1}{e}",
                "0.36787944",
            ],
        ),
        (
            "1-\\frac{1}{e}",
            ["\\frac{e-1}{e}", "1-e^{-1}", "1 - 1/e", "\\dfrac{e-1}{e}"],
            [
                "\\frac{1}{e}",
                "1+\\frac{1}{e}",
                "\\frac{1}{e}-1",
                "0.632",
                "1-e",
                "\\frac{e}{e-1}",
                "1-\\frac{1}{e^2}",
            ],
        ),
        (
            "\\sqrt{2}+\\sqrt{3}",
            [
                "\\sqrt{3}+\\sqrt{2}",
                "\\sqrt2+\\sqrt3",
                "\\sqrt{5+2\\sqrt{6}}",
                "\\frac{1}{\\sqrt{3}-\\sqrt{2}}",
            ],
            [
                "\\sqrt{5}",
                "\\sqrt{3}-\\sqrt{2}",
                "\\sqrt{6}",
                "3.146",
                "\\sqrt{2}-\\sqrt{3}",
                "\\sqrt{2}+\\sqrt{5}",
                "\\sqrt{2+\\sqrt{3}}",
                "\\pi",
            ],
        ),
        (
            "\\frac{1}{\\sqrt{2}}",
            [
                "\\frac{\\sqrt{2}}{2}",
                "\\frac{1}{2}\\sqrt{2}",
                "\\sqrt{\\frac{1}{2}}",
                "2^{-1/2}",
                "\\sqrt{0.5}",
                "\\sqrt{2}/2",
            ],
            [
                "\\sqrt{2}",
                "0.707",
                "0.7071067812",
                "-\\frac{1}{\\sqrt{2}}",
                "\\frac{1}{2}",
                "\\frac{\\sqrt{2}}{4}",
                "\\frac{1}{\\sqrt{3}}",
                "\\frac{2}{\\sqrt{2}}",
            ],
        ),
        (
            "\\sqrt{2+\\sqrt{3}}",
            [
                "\\frac{\\sqrt{6}+\\sqrt{2}}{2}",
                "\\frac{\\sqrt{2}+\\sqrt{6}}{2}",
                "\\sqrt{\\sqrt{3}+2}",
            ],
            [
                "\\sqrt{2}+\\sqrt{3}",
                "\\frac{\\sqrt{6}-\\sqrt{2}}{2}",
                "\\sqrt{2-\\sqrt{3}}",
                "2+\\sqrt{3}",
                "1.93185",
                "-\\sqrt{2+\\sqrt{3}}",
                "\\frac{\\sqrt{6}+\\sqrt{2}}{4}",
            ],
        ),
        (
            "\\frac{1+\\sqrt{5}}{2}",
            [
                "\\frac{\\sqrt{5}+1}{2}",
                "\\frac12+\\frac{\\sqrt5}{2}",
                "(1+\\sqrt{5})/2",
                "\\frac{2}{\\sqrt{5}-1}",
            ],
            [
                "\\frac{1-\\sqrt{5}}{2}",
                "1.618",
                "1.6180339887",
                "\\frac{1\\pm\\sqrt{5}}{2}",
                "1+\\frac{\\sqrt{5}}{2}",
                "\\frac{\\sqrt{5}-1}{2}",
                "\\frac{1+\\sqrt{3}}{2}",
                "\\frac{1+\\sqrt{5}}{4}",
            ],
        ),
    ]
    for g, ri, wr in hand:
        book.add(kind, g, ri, wr)


def scientific(book, n=100):
    """Scientific notation from 10^-40 to 10^30 against expanded forms and slips in the exponent."""
    r = random.Random(202)
    kind = "scientific notation"
    done = 0
    while done < n:
        e = r.choice([r.randint(-40, -1), r.randint(-9, -2), r.randint(2, 9), r.randint(3, 30)])
        c = F(r.choice([r.randint(11, 99), r.randint(101, 999), r.randint(1001, 9999)]))
        while c >= 10:
            c /= 10
        if r.random() < 0.2:
            c = F(r.randint(1, 9))
        s = r.choice([1, 1, 1, 1, -1])

        def ten(e):
            return F(10) ** e

        def put(c, e, op="\\times"):
            return "%s %s 10^{%d}" % (decimal(c), op, e)

        v = s * c * ten(e)
        gold = put(s * c, e, r.choice(["\\times", "\\times", "\\cdot"]))
        if c == 1:
            gold = "%s10^{%d}" % ("-" if s < 0 else "", e)
        c *= s
        right = [
            (put(c, e), v),
            (put(c, e, "\\cdot"), v),
            (f"${put(c, e)}$", v),
            (put(c * 10, e - 1), v),
            (put(c / 10, e + 1), v),
            (put(c, e).replace(" ", ""), v),
            ("x = " + put(c, e), v),
            ("%s\\,\\times\\,10^{%d}" % (decimal(c), e), v),
            (frac(c * 10) + "\\times 10^{%d}" % (e - 1), v),
        ]
        if -9 <= e <= 9:
            right += [(decimal(v), v)] * 2
        if e < 0:
            right += [("\\frac{%s}{10^{%d}}" % (decimal(c), -e), v)]
        if c == 1:
            right = [
                ("10^{%d}" % e, v),
                ("1 \\times 10^{%d}" % e, v),
                ("1\\cdot 10^{%d}" % e, v),
                ("\\frac{1}{10^{%d}}" % -e if e < 0 else "1.0 \\times 10^{%d}" % e, v),
            ]
        wrong = [
            (put(x, y), x * ten(y))
            for x, y in [
                (c, -e),
                (c, e + 1),
                (c, e - 1),
                (-c, e),
                (c + 1, e),
                (c * 2, e),
                (c, e + 10),
                (c, e + 2),
                (c * 100, e),
                (c / 10, e),
                (c + 3, e),
            ]
            if x
        ]
        wrong += [
            "0" if e < 0 else "\\infty",
            "%s^{%d}" % (decimal(c), e) if c not in (1, -1) else "0",
            "10^{%d}" % (e + 3),
            "%s \\times %d" % (decimal(c), e),
            "%s \\times 10 \\times %d" % (decimal(c), e),
            "%s \\times 2^{%d}" % (decimal(c), e),
            "%s + 10^{%d}" % (decimal(c), e),
            "%s \\times e^{%d}" % (decimal(c), e),
            put(c, e) + " \\text{ or } " + put(c, e + 1),
            f"{put(c, e)}, {put(c, e - 1)}",
            "\\neq " + put(c, e),
            "\\pm " + put(c, e).lstrip("-"),
        ]
        if e < -3:
            wrong += ["0", "0.0", "-0", "10^{%d}" % (2 * e)]
        if e == 1:
            continue
        if abs(c) >= 2:
            wrong += [("10^{%d}" % e, ten(e))]
        done += book.add(kind, gold, right, wrong, v, r)


def build(book):
    roots(book)
    powers(book)
    scientific(book)
