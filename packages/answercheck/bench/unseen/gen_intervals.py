"""Cases whose gold is an interval, a union of intervals, or an inequality."""

import random
from fractions import Fraction as F

import sympy as sp

from unseen.core import frac

INF = "inf"
ROOTS = [
    ("\\sqrt{2}", sp.sqrt(2)),
    ("\\sqrt{3}", sp.sqrt(3)),
    ("\\frac{\\pi}{2}", sp.pi / 2),
    ("\\pi", sp.pi),
    ("e", sp.E),
    ("\\sqrt{7}", sp.sqrt(7)),
    ("2\\sqrt{5}", 2 * sp.sqrt(5)),
    ("1+\\sqrt{2}", 1 + sp.sqrt(2)),
]


class Piece:
    """One interval: ends are (spelling, value) pairs, -inf and inf allowed."""

    def __init__(self, lo, lc, hi, hc):
        self.lo, self.lc, self.hi, self.hc = lo, lc, hi, hc

    def value(self):
        a = -sp.oo if self.lo is None else self.lo[1]
        b = sp.oo if self.hi is None else self.hi[1]
        return sp.Interval(a, b, not self.lc, not self.hc)

    def tex(self, big=False, gap=", ", plus=False):
        a = "-\\infty" if self.lo is None else self.lo[0]
        b = ("+" if plus else "") + "\\infty" if self.hi is None else self.hi[0]
        l, r = "[" if self.lc else "(", "]" if self.hc else ")"
        return ("\\left" if big else "") + l + a + gap + b + ("\\right" if big else "") + r

    def cond(self, x="x", flip=False, le="\\le"):
        """The same as a condition on x."""
        lt, ge = "<", le.replace("l", "g", 1)
        if self.lo is None and self.hi is None:
            return None
        if self.lo is None:
            return (
                ("{} {} {}".format(self.hi[0], ge if self.hc else ">", x))
                if flip
                else f"{x} {le if self.hc else lt} {self.hi[0]}"
            )
        if self.hi is None:
            return (
                (f"{self.lo[0]} {le if self.lc else lt} {x}")
                if flip
                else "{} {} {}".format(x, ge if self.lc else ">", self.lo[0])
            )
        if flip:
            return "{} {} {} {} {}".format(
                self.hi[0],
                ge if self.hc else ">",
                x,
                ge if self.lc else ">",
                self.lo[0],
            )
        return f"{self.lo[0]} {le if self.lc else lt} {x} {le if self.hc else lt} {self.hi[0]}"


def point(r):
    """A random end point."""
    if r.random() < 0.2:
        s, v = r.choice(ROOTS)
        return (s, v) if r.random() < 0.6 or "+" in s else ("-" + s, -v)
    q = F(r.randint(-12, 20), r.choice([1, 1, 1, 2, 3, 5]))
    return (frac(q), sp.Rational(q.numerator, q.denominator))


def two(r):
    while True:
        a, b = point(r), point(r)
        if sp.N(b[1] - a[1]) > 0.01:
            return a, b


def moved(p, r):
    """Another end point near p."""
    return r.choice(
        [
            (sp.latex(p[1] + 1), p[1] + 1),
            (sp.latex(-p[1]), -p[1]),
            (sp.latex(2 * p[1]), 2 * p[1]),
            (sp.latex(p[1] - 1), p[1] - 1),
        ]
    )


def variants(p, r):
    """Wrong neighbours of one interval, as Pieces that are proper intervals."""
    out = [
        Piece(p.lo, not p.lc and p.lo is not None, p.hi, p.hc),
        Piece(p.lo, p.lc, p.hi, not p.hc and p.hi is not None),
        Piece(p.lo, not p.lc and p.lo is not None, p.hi, not p.hc and p.hi is not None),
    ]
    if p.lo:
        m = moved(p.lo, r)
        out += [
            Piece(m, p.lc, p.hi, p.hc),
            Piece(None, False, p.hi, p.hc),
            Piece(None, False, p.lo, not p.lc),
        ]
    if p.hi:
        m = moved(p.hi, r)
        out += [
            Piece(p.lo, p.lc, m, p.hc),
            Piece(p.lo, p.lc, None, False),
            Piece(p.hi, not p.hc, None, False),
        ]
    if p.lo and p.hi:
        out.append(
            Piece((sp.latex(-p.hi[1]), -p.hi[1]), p.hc, (sp.latex(-p.lo[1]), -p.lo[1]), p.lc)
        )
    good = []
    for q in out:
        if q.lo and q.hi and sp.N(q.hi[1] - q.lo[1]) <= 0:
            continue
        good.append(q)
    return good


def single(r):
    a, b = two(r)
    k = r.random()
    if k < 0.5:
        lc, hc = r.choice(
            [(True, True), (True, False), (False, True), (True, True), (False, False)]
        )
        return Piece(a, lc, b, hc)
    if k < 0.75:
        return Piece(a, r.random() < 0.5, None, False)
    return Piece(None, False, b, r.random() < 0.5)


def intervals(book, n=110):
    """Single intervals and unions of two or three, in bracket notation."""
    r = random.Random(401)
    kind = "intervals and unions"
    done = 0
    while done < n:
        if r.random() < 0.5:
            p = single(r)
            v = p.value()
            bare_open = p.lo and p.hi and not p.lc and not p.hc
            gold = p.tex(gap=r.choice([",", ", "]), big="frac" in p.tex() and r.random() < 0.7)
            if r.random() < 0.25 or (bare_open and r.random() < 0.6):
                gold, bare_open = "x \\in " + gold, False
            right = [
                p.tex(),
                p.tex(gap=","),
                p.tex(big=True),
                f"${p.tex()}$",
                p.tex(gap=",\\, "),
                p.tex(gap=" , ", plus=True),
            ]
            if not bare_open:
                right += [
                    "x \\in " + p.tex(),
                    "x\\in" + p.tex(gap=","),
                    p.cond(),
                    p.cond(flip=True),
                    p.cond(le="\\leq"),
                    "x \\in \\left" + p.tex()[:-1] + "\\right" + p.tex()[-1],
                ]
            wr = variants(p, r)
            wrong = [(q.tex(), q.value()) for q in wr]
            if not bare_open:
                wrong += [(q.cond(), q.value()) for q in r.sample(wr, 2) if q.cond()]
            t = p.tex()
            if p.hi:
                wrong.append(t + " \\cup [100, 101]")
            wrong += [
                "(-\\infty, \\infty)",
                "\\emptyset",
                "x \\notin " + t,
                "not " + t,
                "\\mathbb{R} \\setminus " + t,
            ]
            for e in (p.lo, p.hi):
                if e:
                    wrong += ["x = " + e[0], e[0]]
            if p.lo and p.hi:
                wrong += [
                    f"{t[0]}{p.hi[0]}, {p.lo[0]}{t[-1]}",
                    f"\\{{{p.lo[0]}, {p.hi[0]}\\}}",
                ]
            value = v
        else:
            vals = {}
            while len(vals) < 5:
                q = point(r)
                if all(abs(sp.N(q[1] - w)) > 0.01 for w in vals.values()):
                    vals[q[0]] = q[1]
            e = sorted(vals.items(), key=lambda t: float(t[1]))

            def b():
                return r.random() < 0.5

            ps = r.choice(
                [
                    [Piece(None, False, e[0], b()), Piece(e[1], b(), None, False)],
                    [Piece(e[0], b(), e[1], b()), Piece(e[2], b(), e[3], b())],
                    [Piece(None, False, e[0], b()), Piece(e[1], b(), e[2], b())],
                    [Piece(e[0], b(), e[1], b()), Piece(e[2], b(), None, False)],
                    [Piece(None, False, e[0], False), Piece(e[0], False, None, False)],
                    [
                        Piece(None, False, e[0], b()),
                        Piece(e[1], False, e[2], False),
                        Piece(e[3], b(), None, False),
                    ],
                    [Piece(e[0], b(), e[1], False), Piece(e[1], False, e[2], b())],
                ]
            )
            value = sp.Union(*[p.value() for p in ps])

            def join(qs, u=" \\cup ", **k):
                return u.join(q.tex(**k) for q in qs)

            pre = r.choice(["", "", "x \\in "])
            gold = pre + join(ps, r.choice([" \\cup ", "\\cup"]), gap=r.choice([",", ", "]))
            right = [
                join(ps[::-1]),
                join(ps, gap=","),
                join(ps, big=True),
                join(ps, "\\cup "),
                "x \\in " + join(ps),
                f"${join(ps)}$",
                " \\text{ or } ".join(p.cond() for p in ps),
                " or ".join(p.cond(le="\\leq") for p in ps[::-1]),
                join(ps, " \\cup ", plus=True),
            ]
            if len(ps) == 2 and ps[0].lo is None and ps[1].hi is None and ps[0].hi == ps[1].lo:
                right += ["x \\neq " + e[0][0], f"\\mathbb{{R}} \\setminus \\{{{e[0][0]}\\}}"] * 2
            wrong = [
                (join(qs), sp.Union(*[q.value() for q in qs]))
                for qs in [ps[:1], ps[1:], [*ps, Piece(("200", 200), True, ("201", 201), True)]]
                + [[q, *ps[1:]] for q in variants(ps[0], r)]
                + [[*ps[:-1], q] for q in variants(ps[-1], r)]
            ]
            wrong += [
                join(ps, " \\cap "),
                "(-\\infty, \\infty)",
                "\\emptyset",
                "x \\notin " + join(ps),
                "not " + join(ps),
            ]
            if value == sp.Reals:
                continue
            wrong = [w for w in wrong if not isinstance(w, tuple) or w[1] != value]
        right = [(s, 0) for s in right if s]
        wrong = [
            w[0] if isinstance(w, tuple) else w
            for w in wrong
            if not (isinstance(w, tuple) and w[1] == value)
        ]
        done += book.add(kind, gold, right, wrong, 0, r)


def inequalities(book, n=110):
    """Conditions on one letter: one-sided, two-sided, two branches, not equal."""
    r = random.Random(402)
    kind = "inequalities"
    done = 0
    while done < n:
        x = r.choice("xxxxxaktmny")
        p = single(r)
        gold = p.cond(x, flip=r.random() < 0.2, le=r.choice(["\\le", "\\leq"]))
        gold = gold.replace(" ", "") if r.random() < 0.3 and "\\" not in gold else gold
        right = [
            p.cond(x),
            p.cond(x, True),
            p.cond(x, le="\\leq"),
            f"${p.cond(x)}$",
            p.tex(),
            p.tex(big=True),
            f"{x} \\in {p.tex()}",
            "{}\\in{}".format(x, p.tex(gap=",")),
            p.cond(x).replace("\\le", "≤").replace("\\ge", "≥"),
            p.cond(x, le="\\leqslant"),
        ]
        right += [p.cond(x).replace("<", "\\lt").replace(">", "\\gt")]
        if p.lo and p.hi and not p.lc and not p.hc:
            right = [s for s in right if s not in (p.tex(), p.tex(big=True))]
        v = p.value()
        wr = variants(p, r)
        wrong = [q.cond(x) for q in wr if q.value() != v and q.cond(x)] + [
            q.tex() for q in wr if q.value() != v
        ]
        other = {"x": "y", "a": "b", "k": "n", "t": "x", "m": "n", "n": "m", "y": "x"}[x]
        wrong += [
            p.cond(other),
            p.cond(x.upper()),
            p.cond(x + "^2"),
            p.cond("2" + x),
            "not " + p.cond(x),
            f"{x} = {(p.lo or p.hi)[0]}",
            f"{x} \\neq {(p.lo or p.hi)[0]}",
            f"{x} = {x}",
            "0 < 1",
            (p.lo or p.hi)[0],
            p.cond(x) + " \\text{{ or }} {} = {}1000".format(x, "" if p.hi else "-"),
            f"{x} \\in \\mathbb{{R}}",
            "\\emptyset",
        ]
        if p.hi:
            wrong.append(p.cond(x) + f" \\text{{ and }} {x} < -1000")
        if any(t and t[1] == 0 for t in (p.lo, p.hi)) or any(t and t[1] == 1 for t in (p.lo, p.hi)):
            wrong = [w for w in wrong if w not in (p.cond("2" + x), p.cond(x + "^2"))]
        done += book.add(kind, gold, right, wrong, None, r)
    for g, ri, wr in [
        (
            "x \\neq 2",
            [
                "x\\ne 2",
                "2 \\neq x",
                "(-\\infty,2)\\cup(2,\\infty)",
                "x<2 \\text{ or } x>2",
                "\\mathbb{R}\\setminus\\{2\\}",
            ],
            [
                "x = 2",
                "2",
                "x \\neq -2",
                "x \\neq 3",
                "y \\neq 2",
                "x > 2",
                "x < 2",
                "\\mathbb{R}",
                "x \\neq 2, 3",
                "(-\\infty,2]\\cup(2,\\infty)",
            ],
        ),
        (
            "|x| < 3",
            ["-3<x<3", "|x|<3", "x\\in(-3,3)", "3>|x|", "\\left|x\\right|<3", "\\lvert x\\rvert<3"],
            [
                "x<3",
                "|x|\\le 3",
                "|x|>3",
                "|x|<9",
                "-3\\le x\\le 3",
                "|y|<3",
                "x>-3",
                "|x|=3",
                "x=\\pm 3",
            ],
        ),
        (
            "x<-1 \\text{ or } x>4",
            [
                "x>4 \\text{ or } x<-1",
                "(-\\infty,-1)\\cup(4,\\infty)",
                "x<-1 or x>4",
                "-1>x \\text{ or } 4<x",
            ],
            [
                "-1<x<4",
                "x<-1",
                "x>4",
                "x\\le -1 \\text{ or } x\\ge 4",
                "x<-4 \\text{ or } x>1",
                "(-1,4)",
                "y<-1 \\text{ or } y>4",
                "x<-1 \\text{ or } x>5",
            ],
        ),
        (
            "y \\ge 2x+1",
            ["2x+1\\le y", "y\\geq 2x+1", "y \\ge 1+2x"],
            [
                "y>2x+1",
                "y\\le 2x+1",
                "y=2x+1",
                "y\\ge 2x-1",
                "x\\ge 2y+1",
                "y\\ge 2x",
                "y\\ge 3x+1",
                "2x+1",
                "y \\ge -2x+1",
                "Y \\ge 2x+1",
            ],
        ),
        (
            "a^2+b^2 \\ge 2ab",
            ["2ab\\le a^2+b^2", "a^2+b^2\\geq 2ab", "b^2+a^2\\ge 2ba"],
            [
                "a^2+b^2>2ab",
                "a^2+b^2\\le 2ab",
                "a^2+b^2=2ab",
                "a^2+b^2\\ge ab",
                "a+b\\ge 2ab",
                "a^2-b^2\\ge 2ab",
                "x^2+y^2\\ge 2xy",
                "a^2+b^2",
            ],
        ),
    ]:
        book.add(kind, g, ri, wr)


def build(book):
    intervals(book)
    inequalities(book)
