"""Cases with percent, units, degrees and money; numbers in a base; complex numbers."""

import random
from fractions import Fraction as F

from unseen.core import decimal, frac, grouped, sign

OTHER = {
    "cm": ["m", "mm", "km", "in"],
    "m": ["cm", "km", "ft", "s"],
    "km": ["m", "mi", "cm"],
    "mm": ["cm", "m"],
    "kg": ["g", "mg", "N"],
    "g": ["kg", "mg"],
    "s": ["ms", "h", "m"],
    "J": ["kJ", "W", "eV"],
    "kJ": ["J", "MJ"],
    "N": ["J", "kN", "Pa"],
    "W": ["kW", "J"],
    "V": ["A", "mV", "kV"],
    "K": ["kJ", "mK"],
    "Pa": ["kPa", "N"],
    "Hz": ["kHz", "MHz"],
    "mol": ["mmol", "kmol"],
    "L": ["mL", "dL"],
    "A": ["mA", "V"],
    "eV": ["keV", "J"],
    "inches": ["feet", "miles"],
    "feet": ["inches", "miles"],
    "hours": ["minutes", "seconds", "days"],
    "minutes": ["hours", "seconds"],
    "days": ["weeks", "hours"],
    "apples": ["pears", "dozens"],
    "cents": ["dollars", "euros"],
    "miles": ["feet", "inches"],
    "mph": ["km/h", "mi"],
    "grams": ["kilograms"],
    "people": ["cars"],
    "units": ["dozens"],
    "m/s": ["m/s^2", "km/s", "m"],
    "m/s^2": ["m/s", "m/s^3", "km/s^2"],
    "km/h": ["m/s", "km"],
    "J/K": ["kJ/K", "J"],
    "kg/m^3": ["kg/m^2", "g/m^3"],
    "J/mol": ["kJ/mol", "J"],
}


def unit_tex(u, style):
    """The unit u typeset in one of several styles."""
    base, hat, p = u.partition("^")
    tail = f"^{p}" if hat else ""
    return {
        "text": " \\text{ %s}%s",
        "rm": "\\,\\mathrm{%s}%s",
        "mbox": "\\mbox{ %s}%s",
        "plain": " %s%s",
        "thin": "\\,\\text{%s}%s",
        "tilde": "~\\text{%s}%s",
        "brace": "\\ \\text{%s}%s",
        "tight": "\\text{ %s}%s",
    }[style] % (base, tail)


def units(book, n=75):
    """A number with a unit, or with a power of a unit."""
    r = random.Random(301)
    kind = "percent, units, degrees and money"
    done = 0
    while done < n:
        u = r.choice(list(OTHER))
        q = r.choice(
            [
                F(r.randint(2, 99)),
                F(r.randint(2, 99)),
                F(r.randint(101, 999)),
                F(r.randint(11, 999), 10),
                F(r.randint(1, 9), r.choice([2, 3, 7])) + 1,
            ]
        )
        x = decimal(q) if q.denominator in (1, 10, 5, 2) else frac(q)
        p = (
            r.choice(["", "", "", "^2", "^3"])
            if u in ("cm", "m", "km", "mm", "inches", "feet", "miles")
            else ""
        )
        gold = x + unit_tex(u + p, r.choice(["text", "rm", "mbox", "thin", "text", "brace"]))
        pb = p.replace("^", "^{") + "}" if p else ""
        right = [
            x + unit_tex(u + p, st)
            for st in ("text", "rm", "mbox", "plain", "thin", "tilde", "brace")
        ] + [x, x, f"${x}$", "$%s$" % (x + unit_tex(u + p, "rm"))]
        if p:
            right += [
                f"{x} \\text{{ {u}}}{pb}",
                f"{x}\\,\\mathrm{{{u}}}{pb}",
                f"{x}\\,\\mathrm{{{u}{pb}}}",
            ]
        if x.startswith("\\"):
            right.append("%d/%d%s" % (q.numerator, q.denominator, unit_tex(u + p, "text")))

        def st():
            return r.choice(["text", "rm", "plain", "thin"])

        wrong = [x + unit_tex(o + p, st()) for o in OTHER[u]]
        if "/" not in u and u not in ("apples", "people", "units", "mph", "cents", "grams"):
            powers = [e for e in ("", "^2", "^3", "^4") if e != p]
            wrong += [x + unit_tex(u + e, st()) for e in powers]
            wrong.append(
                f"{x}\\,\\mathrm{{{u}}}^{{-1}}" if not p else f"{x} \\text{{ {u}}}^{{-{p[1:]}}}"
            )
        for v in (-q, q + 1, q * 10, q - 1, 1 / q, q / 10):
            if v and v != q:
                y = decimal(v) if v.denominator in (1, 10, 5, 2, 100, 20, 4, 25, 50) else frac(v)
                wrong += [y + unit_tex(u + p, st()), y]
        more = decimal(q + 1) if q.denominator in (1, 2, 5, 10) else frac(q + 1)
        wrong += [
            f"{x} \\text{{ or }} {more} \\text{{ {u}}}",
            "\\neq " + x + unit_tex(u + p, "text"),
            "not " + x,
            f"\\text{{ {u}}}",
        ]
        done += book.add(kind, gold, right, wrong, None, r)


def percent(book):
    """Percentages; bare numbers of the same digits are in neither list."""
    r = random.Random(302)
    kind = "percent, units, degrees and money"
    done = 0
    while done < 40:
        q = r.choice(
            [
                F(r.randint(1, 99)),
                F(r.randint(1, 99)),
                F(r.randint(100, 400)),
                F(r.randint(11, 999), 10),
                F(r.randint(101, 999), 100),
                F(100, r.choice([3, 7, 9, 6])),
                F(r.randint(1, 9), 10),
            ]
        )
        x = decimal(q) if q.denominator in (1, 2, 4, 5, 10, 20, 25, 50, 100) else frac(q)
        gold = x + r.choice(["\\%", "\\%", "\\%", " \\%", "\\text{ percent}", "\\,\\%"])
        right = [
            x + t
            for t in ("\\%", "%", " \\%", "\\,\\%", " percent", "\\text{ percent}", "\\text{\\%}")
        ] + [f"${x}\\%$"]
        if q.denominator == 1:
            right.append("%d.0\\%%" % q)
        wrong = [
            (
                decimal(v)
                if v.denominator in (1, 2, 4, 5, 10, 20, 25, 50, 100, 1000, 200, 500)
                else frac(v)
            )
            + "\\%"
            for v in (10 * q, -q, q + 1, q / 10, 100 - q, q + 10, 100 + q, 2 * q)
            if v and v != q
        ]
        wrong += [x + t for t in ("^\\circ", "\\text{ cm}", "\\text{ kg}")] + [
            "\\$" + x,
            "%s\\%% \\text{ or } %d\\%%" % (x, q + 2),
            f"\\neq {x}\\%",
            f"not {x}\\%",
            f"{x}\\%, 5\\%",
            f">{x}\\%",
            "\\%",
        ]
        done += book.add(kind, gold, right, wrong, None, r)


def degrees(book):
    """Angles in degrees."""
    r = random.Random(303)
    kind = "percent, units, degrees and money"
    done = 0
    while done < 40:
        q = r.choice(
            [
                F(r.randint(1, 180)),
                F(r.randint(1, 180)),
                F(5 * r.randint(1, 70)),
                F(r.randint(101, 1799), 10),
                F(r.randint(20, 900), 7),
            ]
        )
        x = decimal(q) if q.denominator in (1, 2, 5, 10) else frac(q)
        gold = x + r.choice(["^\\circ", "^{\\circ}", "^\\circ", "\\text{ degrees}", "^\\circ"])
        right = [
            x + t
            for t in ("^\\circ", "^{\\circ}", "\\text{ degrees}", " degrees", "°", "\\,^\\circ")
        ] + [x, f"${x}^\\circ$", x]

        def f(v):
            return decimal(v) if v.denominator in (1, 2, 5, 10, 20, 4, 100, 50, 25) else frac(v)

        vals = [
            v
            for v in (-q, 10 * q, q + 1, 180 - q, 90 - q, 360 - q, q / 2, 2 * q, q + 10, q - 1)
            if v != q and v
        ]
        wrong = [f(v) + r.choice(["^\\circ", "^\\circ", "^{\\circ}", ""]) for v in vals]
        wrong += [
            x + "\\text{ radians}",
            x + "\\text{ rad}",
            x + "\\%",
            x + "\\pi",
            f"\\neq {x}^\\circ",
            f"{x}^\\circ \\text{{ or }} {f(q + 5)}^\\circ",
            f"{x}^\\circ, {f(q + 3)}^\\circ",
            f"not {x}^\\circ",
            f"\\pm {x}^\\circ",
            f">{x}^\\circ",
        ]
        done += book.add(kind, gold, right, wrong, None, r)


def money(book):
    """Amounts in dollars."""
    r = random.Random(304)
    kind = "percent, units, degrees and money"
    done = 0
    while done < 40:
        m = r.choice(
            [
                F(r.randint(1, 99)),
                F(r.randint(100, 999)),
                F(r.randint(1000, 99999)),
                F(r.randint(101, 9999), 100),
                F(r.randint(1, 40) * 1000),
            ]
        )
        whole = m.denominator == 1

        def put(v, sep="{,}"):
            v = F(v)
            w = grouped(int(abs(v)), sep) if sep else str(int(abs(v)))
            c = abs(v) % 1 * 100
            return sign(v) + "\\$" + w + ("" if v.denominator == 1 else ".%02d" % int(c))

        gold = put(m, r.choice([",", "{,}", ",\\!", ""]))
        right = (
            [put(m, x) for x in (",", "{,}", "", "\\,")]
            + [
                put(m, "")[2:],
                put(m, ",")[2:],
                "${}$".format(put(m, "")),
                put(m, "")[2:] + (".00" if whole else ""),
            ]
            + ([put(m, "") + ".00"] if whole else [])
        )
        wrong = [put(v) for v in (10 * m, -m, m + 1, m * 2, m - 1, m + 100) if v and v != m] + [
            put(v, "")[2:] for v in (10 * m, m + 1, m + 10)
        ]
        x = put(m, "")[2:]
        wrong += [
            x + "\\text{ cents}",
            x + " cents",
            "€" + x,
            "\\pounds " + x,
            x + "\\%",
            f"{put(m)} \\text{{ or }} {put(m + 1)}",
            "\\neq " + put(m, ""),
            "not " + put(m),
            put(m) + ", " + put(m + 5),
            put(m) + "\\text{ million}",
            "-" + x,
            "<" + put(m, ""),
            x + "^2" if m != 1 else "2",
        ]
        done += book.add(kind, gold, right, wrong, None, r)


def bases(book, n=110):
    """Numerals in bases 2 to 16."""
    r = random.Random(305)
    kind = "numbers in a base"
    done = 0
    while done < n:
        b = r.choice([2, 2, 3, 4, 5, 6, 7, 8, 8, 9, 11, 12, 16])
        k = r.randint(2, 6) if b > 3 else r.randint(3, 9)
        al = "0123456789ABCDEF"[:b]
        d = r.choice(al[1:]) + "".join(r.choice(al) for _ in range(k - 1))
        if b > 10 and not any(c.isalpha() for c in d) and r.random() < 0.7:
            continue
        sub = str(b) if r.random() < 0.6 and b < 10 else "{%d}" % b
        gold = f"{d}_{sub}"
        right = [
            "%s_{%d}" % (d, b),
            "$%s_{%d}$" % (d, b),
            "(%s)_{%d}" % (d, b),
            "{%s}_{%d}" % (d, b),
            "%s_{ %d }" % (d, b),
            "\\(%s_{%d}\\)" % (d, b),
        ]
        if b < 10:
            right.append("%s_%d" % (d, b))
        if any(c.isalpha() for c in d):
            right += ["\\text{%s}_{%d}" % (d, b), "\\mathrm{%s}_{%d}" % (d, b)]
        i = r.randrange(k)
        flip = (
            d[:i] + r.choice([c for c in al if c != d[i] and (i or c != "0")] or ["1"]) + d[i + 1 :]
        )
        wrong = [
            d,
            d[::-1] + "_{%d}" % b,
            "%s_{%d}" % (flip, b),
            "%s_{%d}" % (d, b + 1),
            "%s_{%d}" % (d, b - 1 if b > 2 else 10),
            "-%s_{%d}" % (d, b),
            "%s0_{%d}" % (d, b),
            "1%s_{%d}" % (d, b),
            "%s^{%d}" % (d, b),
            "%s_{%d}" % (d[:-1], b),
            f"{d}_{{10}}",
            "%s_{%d0}" % (d, b),
            "%s_{%d} \\text{ or } %s_{%d}" % (d, b, flip, b),
            "%s_{%d}, %s_{%d}" % (d, b, flip, b),
            "%s \\cdot %d" % (d, b),
            f"{d}_b",
            "\\neq %s_{%d}" % (d, b),
            "not %s_{%d}" % (d, b),
            flip,
            "%s_{%d}" % (d + al[-1], b),
            f"{d}_x",
        ]
        wrong = [w for w in wrong if w and not w.startswith("_") and w != str(int(d, b))]
        if d[::-1] == d or d[-1] == "0":
            wrong = [w for w in wrong if not w.startswith(d[::-1]) or w.startswith(d)]
        done += book.add(kind, gold, right, wrong, None, r)


def cput(a, b, i="i"):
    """a + b i in usual spelling."""
    a, b = F(a), F(b)
    im = ("" if abs(b) == 1 else (frac(abs(b)))) + i
    if not b:
        return frac(a)
    return ("-" if b < 0 else "") + im if not a else frac(a) + (" - " if b < 0 else " + ") + im


def complexes(book, n=120):
    """Complex numbers with integer, fractional or root parts."""
    r = random.Random(306)
    kind = "complex numbers"
    done = 0
    while done < n:
        d = r.choice([1, 1, 1, 2, 5, 13])
        a, b = F(r.randint(-12, 15), d), F(r.randint(-12, 15), d)
        if not b:
            continue
        v = (a, b)
        gold = cput(a, b).replace(" ", r.choice(["", " "]))
        im = ("-" if b < 0 else "") + ("" if abs(b) == 1 else frac(abs(b))) + "i"
        right = [
            (cput(a, b), v),
            (cput(a, b).replace(" ", ""), v),
            (f"${cput(a, b)}$", v),
            ("z = " + cput(a, b), v),
            (cput(a, b).replace("\\frac", "\\dfrac"), v),
            (cput(a, b, "\\,i"), v),
            (cput(a, b, "\\mathrm{i}"), v),
        ]
        if a:
            right += [
                ("{} {} {}".format(im, "-" if a < 0 else "+", frac(abs(a))), v),
                ("{}{}{}".format(im, "-" if a < 0 else "+", frac(abs(a))), v),
                (f"({frac(a)}) + ({im})", v),
            ]
        if d > 1 and a:
            A, B = a * d, b * d
            right += [
                ("\\frac{%s}{%d}" % (cput(A, B), d), v),
                ("\\frac{1}{%d}(%s)" % (d, cput(A, B)), v),
            ]
            if d in (2, 5):
                right.append(
                    ("{} {} {}i".format(decimal(a), "-" if b < 0 else "+", decimal(abs(b))), v)
                )
        if abs(b) != 1:
            right.append(
                (
                    "{}{}{} \\cdot i".format(
                        frac(a) if a else "", ("-" if b < 0 else "+" if a else ""), frac(abs(b))
                    ),
                    v,
                )
            )
        wrong = [
            (cput(*w), w)
            for w in [
                (a, -b),
                (-a, b),
                (-a, -b),
                (b, a),
                (a + 1, b),
                (a, b + 1),
                (a, F(0)),
                (F(0), b),
                (a, 2 * b),
                (10 * a, b),
                (a, b / 10),
                (a + b, F(0)),
                (a - 1, b - 1),
            ]
        ]
        wrong += [
            cput(a, b, "I"),
            cput(a, b, "x"),
            cput(a, b, ""),
            cput(a, b) + " \\text{ or } " + cput(a, -b),
            cput(a, b) + ", " + cput(a, -b),
            "\\neq " + cput(a, b),
            "not " + cput(a, b),
            cput(a, b) + " + 1",
            f"|{cput(a, b)}|",
            f"\\overline{{{cput(a, b)}}}",
            f"{frac(a)} \\pm {frac(abs(b))}i" if a else f"\\pm {frac(abs(b))}i",
            cput(a, b, "i^2"),
            cput(a, b, "i^3"),
            f"x = {frac(a)}, y = {frac(b)}",
            cput(a, b, "\\pi"),
        ]
        if abs(b) == 1:
            wrong.remove(cput(a, b, ""))
        done += book.add(kind, gold, right, wrong, v, r)
    hand = [
        (
            "1+\\sqrt{3}i",
            [
                "1+i\\sqrt{3}",
                "\\sqrt{3}i+1",
                "2e^{i\\pi/3}",
                "1 + \\sqrt{3}\\,i",
                "2\\left(\\frac12+\\frac{\\sqrt3}{2}i\\right)",
            ],
            [
                "1-\\sqrt{3}i",
                "\\sqrt{3}+i",
                "1+\\sqrt{3i}",
                "1+\\sqrt{3}",
                "-1+\\sqrt{3}i",
                "1+3i",
                "1+1.732i",
                "1+\\sqrt{3}I",
                "2",
                "1+\\sqrt{2}i",
            ],
        ),
        (
            "e^{i\\pi/4}",
            [
                "e^{\\frac{i\\pi}{4}}",
                "\\frac{\\sqrt2}{2}+\\frac{\\sqrt2}{2}i",
                "\\frac{1+i}{\\sqrt{2}}",
                "\\cos\\frac{\\pi}{4}+i\\sin\\frac{\\pi}{4}",
                "e^{\\pi i/4}",
            ],
            [
                "e^{-i\\pi/4}",
                "e^{i\\pi/2}",
                "1+i",
                "e^{\\pi/4}",
                "-e^{i\\pi/4}",
                "\\frac{\\sqrt2}{2}",
                "0.707+0.707i",
                "e^{I\\pi/4}",
                "e^{3i\\pi/4}",
            ],
        ),
        (
            "-1+i\\sqrt{5}",
            ["i\\sqrt{5}-1", "-1+\\sqrt{5}i", "-1+\\sqrt{5}\\,i", "-(1-i\\sqrt5)"],
            [
                "1+i\\sqrt{5}",
                "-1-i\\sqrt{5}",
                "-1+\\sqrt{5}",
                "-1\\pm i\\sqrt{5}",
                "-1+5i",
                "-1+2.236i",
                "\\sqrt{5}-i",
                "-1+i\\sqrt{6}",
            ],
        ),
        (
            "6e^{i\\pi/6}",
            [
                "3\\sqrt{3}+3i",
                "6e^{\\pi i/6}",
                "6(\\cos 30^\\circ+i\\sin 30^\\circ)",
                "6\\left(\\frac{\\sqrt3}{2}+\\frac{i}{2}\\right)",
            ],
            [
                "3\\sqrt{3}-3i",
                "3+3\\sqrt{3}i",
                "6",
                "6e^{i\\pi/3}",
                "6e^{\\pi/6}",
                "5.196+3i",
                "3e^{i\\pi/6}",
                "-3\\sqrt{3}+3i",
            ],
        ),
    ]
    for g, ri, wr in hand:
        book.add(kind, g, ri, wr)


def build(book):
    for f in (units, percent, degrees, money, bases, complexes):
        f(book)
