"""Cases whose gold is an integer, a decimal, or a fraction or mixed number."""

import random
from fractions import Fraction as F

from unseen.core import (
    decimal,
    dress,
    forms,
    frac,
    grouped,
    hedges,
    mixed,
    near,
    rounded,
    show,
    sign,
    terminates,
)


def integers(book, n=130):
    """Integers from one digit to eight digits, some with thousands separators in the gold."""
    r = random.Random(101)
    kind = "integers"
    fixed = [
        0,
        1,
        -1,
        2,
        3,
        10,
        11,
        12,
        100,
        1000,
        2220,
        13535,
        -256,
        28800,
        5,
        7,
        64,
        -3,
        1736,
        9901,
        504,
        8,
        2024,
        6,
        101,
    ]
    done = 0
    while done < n:
        m = (
            fixed[done]
            if done < len(fixed)
            else r.choice(
                [
                    r.randint(2, 99),
                    r.randint(100, 999),
                    r.randint(1000, 99999),
                    r.randint(100000, 99999999),
                    -r.randint(2, 60),
                    10 * r.randint(2, 99),
                    1000 * r.randint(2, 99),
                ]
            )
        )
        gold = str(m)
        if abs(m) >= 1000 and r.random() < 0.5:
            gold = grouped(m, r.choice([",", "{,}", ",\\!", "\\,", "\\;"]))
        letter = r.choice("xnamkNPt")
        right = [(s, m) for s in forms(m, r)] + [
            ("%s=%d" % (letter, m), m),
            ("%s = %d" % (letter, m), m),
            ("%d" % m, m),
            ("\\displaystyle %d" % m, m),
        ]
        wrong = [(show(v, r), v) for v in near(m, r)]
        t = show(m + r.choice([1, 2, -1, 5]), r)
        wrong += [
            w
            for w in r.sample(hedges(str(m), t, r), 6)
            if w not in ("\\pm 0", "%d=%d" % (m, m))
            and (m or w not in ("\\text{none}", "\\emptyset"))
        ]
        extra = ["%di" % m, "%dx" % m, "%d\\pi" % m, "-(%di)" % m] if m else ["i", "x", "\\pi"]
        if m > 2:
            extra += [
                "%d!" % m,
                "\\sqrt{%d}" % m,
                "%d^2" % m,
                "%d^{-1}" % m,
                "\\frac{%d}{%d}" % (m, m),
                "\\log %d" % m,
            ]
        wrong += r.sample(extra, 2)
        if m:
            wrong += [
                ("%d.%d" % (m, r.randint(1, 9)), "more"),
                ("%s=%d" % (letter, -m), -m),
                ("%s=%d" % (letter, m + 1), m + 1),
                "%s^2=%d" % (letter, m),
                "2%s=%d" % (letter, m),
            ]
        if abs(m) >= 1000:
            g = grouped(m, ",")
            wrong += [
                (g.replace(",", ".", 1) + "1", "dec"),
                (grouped(m * 10, ","), m * 10),
                (grouped(m + 1000, "{,}"), m + 1000),
                (grouped(m + 100, "\\,"), m + 100),
            ]
        done += book.add(kind, gold, right, wrong, m, r)


def decimals(book, n=110):
    """Decimals, also without leading zero, with trailing zeros, and very small ones."""
    r = random.Random(102)
    kind = "decimals"
    fixed = [
        "0.15",
        "1.25",
        "3.21",
        ".0000672",
        ".35625",
        "326.5",
        "4.5",
        "18.90",
        "0.5",
        "0.25",
        "-0.75",
        "2.50",
        "0.125",
        "12.8",
        "0.001",
        "3.0",
        ".5",
        "-.4",
        "99.99",
        "0.0625",
    ]
    done = tries = 0
    while done < n:
        if tries < len(fixed):
            gold = fixed[tries]
        else:
            k = r.choice([1, 1, 2, 2, 3, 4, 5])
            body = r.choice([r.randint(1, 99), r.randint(100, 9999), r.randint(10000, 999999)])
            if body % 10 == 0:
                body += 3
            gold = decimal(F(body, 10**k) * r.choice([1, 1, 1, -1]), lead=r.random() < 0.85)
        tries += 1
        q = F(gold)
        ulp = F(1, 10 ** max(1, len(gold.split(".")[1].rstrip("0"))))
        d = decimal(q)
        right = [(d, q), (f"${d}$", q), (f"x = {d}", q), (f"\\({d}\\)", q), (" " + d, q)]
        if "." in d:
            right += [
                (d + "0", q),
                (d + "00", q),
                (frac(q), q),
                (frac(q, "\\dfrac"), q),
                (frac(q * 1).replace("\\frac", "\\tfrac"), q),
            ]
            right.append(("%d/%d" % (q.numerator, q.denominator), q))
            if abs(q) < 1:
                right.append((decimal(q, lead=False), q))
            if abs(q) > 1:
                right.append((mixed(q), q))
        if q > 0:
            right.append(("+" + d, q))
        if abs(q) >= 1000:
            w, _, rest = d.partition(".")
            right += [(grouped(int(w), x) + "." + rest, q) for x in (",", "{,}", "\\,")]
        digits = [i for i, c in enumerate(d) if c.isdigit()]
        changed = []
        for i in r.sample(digits, min(3, len(digits))):
            changed.append(d[:i] + str((int(d[i]) + r.randint(2, 8)) % 10) + d[i + 1 :])
        vals = [F(c) for c in changed] + [
            -q,
            10 * q,
            q / 10,
            100 * q,
            q / 100,
            q + 1,
            q - 1,
            1 - q,
            2 * q,
            q + 10,
        ]
        vals += [F(1) / q] if terminates(1 / q) else []
        places = len(d.partition(".")[2])
        cut = {F(int(abs(q) * 10**k) + j, 10**k) for k in range(places) for j in (0, 1)}
        vals = [
            v
            for v in vals
            if abs(v - q) >= 2 * ulp and round(v, 1) != q and v and abs(v) not in cut - {abs(q)}
        ]
        wrong = [(decimal(v), v) for v in vals]
        wrong += [(frac(v), v) for v in vals[:4] if v.denominator < 10**6]
        t = decimal(q + r.choice([1, 2, F(1, 2)]))
        wrong += r.sample(hedges(d, t, r), 4)
        wrong += r.sample(
            [
                d + "\\pi",
                d + "x",
                d + "i",
                d + "^2" if q not in (0, 1) else "x",
                "\\frac{%d}{%d}" % (q.denominator, q.numerator)
                if abs(q.numerator) not in (q.denominator,)
                else "y",
                "y > " + d,
                "\\sqrt{{{}}}".format(d.lstrip("-")),
            ],
            2,
        )
        done += book.add(kind, gold, right, wrong, q, r)


def fractions(book, n=150):
    """Proper and improper fractions and mixed numbers, in many gold spellings."""
    r = random.Random(103)
    kind = "fractions and mixed numbers"
    fixed = [
        F(14, 3),
        F(3, 56),
        F(243, 625),
        F(1, 3),
        F(2, 3),
        F(-1, 6),
        F(448, 15625),
        F(3840, 289),
        F(1, 2),
        F(9, 256),
        F(137 * 2 + 1, 2),
        F(9, 5),
        F(1997, 2),
        F(-35, 9),
        F(2, 1005),
        F(639, 40),
        F(1, 7),
        F(22, 7),
        F(3, 4),
        F(11, 36),
    ]
    done = tries = 0
    while done < n:
        if tries < len(fixed):
            q = fixed[tries]
        else:
            b = r.choice(
                [
                    r.randint(2, 12),
                    r.randint(2, 40),
                    r.randint(10, 999),
                    2 ** r.randint(2, 9),
                    5 ** r.randint(1, 5),
                ]
            )
            a = r.choice([r.randint(1, 2 * b), r.randint(1, b), r.randint(1, 999)])
            q = F(a, b) * r.choice([1, 1, 1, 1, -1])
        tries += 1
        if q.denominator == 1:
            continue
        a, b, s = abs(q.numerator), q.denominator, sign(q)
        golds = [frac(q), frac(q), frac(q, "\\dfrac"), frac(q, "\\tfrac"), "%s%d/%d" % (s, a, b)]
        if a > b:
            golds += [mixed(q), mixed(q), mixed(q).replace("\\frac", " \\frac")]
        if a < 10 and b < 10:
            golds.append("%s\\frac%d%d" % (s, a, b))
        gold = r.choice(golds)
        right = [(f, q) for f in forms(q, r)] + [
            ("x = " + frac(q), q),
            ("x=%s%d/%d" % (s, a, b), q),
        ]
        wrong = [(show(v, r), v) for v in near(q, r) if v]
        if not terminates(q):
            wrong += [
                (rounded(q, k), F(rounded(q, k))) for k in r.sample([1, 2, 3, 4, 6, 8, 10], 3)
            ]
        if a > b:
            w, rest = divmod(abs(q), 1)
            m = 1 if q > 0 else -1
            wrong += [
                (s + "%d \\cdot " % w + frac(rest), m * w * rest),
                (mixed(m * (w + 1 + rest)), m * (w + 1 + rest)),
                (
                    s + "%d\\frac{%d}{%d}" % (w, rest.denominator, rest.numerator),
                    m * (w + 1 / rest),
                ),
                (
                    s + "%d%d/%d" % (w, rest.numerator, rest.denominator),
                    m * F(int("%d%d" % (w, rest.numerator)), rest.denominator),
                ),
                (mixed(-q), -q),
                (frac(m * rest), m * rest),
                (str(m * w), m * w),
            ]
        wrong += r.sample(hedges(frac(q), show(q + 1, r), r), 3)
        wrong += r.sample(
            [
                frac(q) + "\\pi",
                frac(q) + "x",
                "\\frac{%s%dx}{%d}" % (s, a, b),
                frac(q) + "i",
                "\\sqrt{\\frac{%d}{%d}}" % (a, b),
                "\\frac{%d}{%d}\\sqrt{2}" % (a, b),
                "%d:%d" % (b, a),
                "\\left(\\frac{%d}{%d}\\right)^2" % (a, b),
                "\\binom{%d}{%d}" % (max(a, b) + 3, 2),
            ],
            2,
        )
        if r.random() < 0.3:
            right.append((dress(frac(q), r), q))
        done += book.add(kind, gold, right, wrong, q, r)


def repeating(book):
    """Fractions against their repeating decimals, exact and cut off."""
    kind = "fractions and mixed numbers"
    for a, b, pre, rep in [
        (1, 3, "0.", "3"),
        (2, 3, "0.", "6"),
        (1, 7, "0.", "142857"),
        (1, 6, "0.1", "6"),
        (5, 11, "0.", "45"),
        (4, 9, "0.", "4"),
    ]:
        q = F(a, b)
        book.add(
            kind,
            f"{pre}\\overline{{{rep}}}",
            [
                frac(q),
                "%d/%d" % (a, b),
                f"${pre}\\overline{{{rep}}}$",
                frac(q, "\\dfrac"),
                "\\frac{%d}{%d}" % (2 * a, 2 * b),
            ],
            [
                frac(1 / q),
                frac(-q),
                f"-{pre}\\overline{{{rep}}}",
                frac(q + 1),
                frac(F(a + 1, b)),
                frac(F(a, b + 1)),
                "1" + pre[1:] + f"\\overline{{{rep}}}",
                "\\neq " + frac(q),
                frac(q) + ", 1",
                f"0.\\overline{{1{rep}}}" if rep != "1" else "0",
            ],
        )


def build(book):
    integers(book)
    decimals(book)
    fractions(book)
    repeating(book)
