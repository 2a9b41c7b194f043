"""Cases whose gold is a matrix."""

import random
from fractions import Fraction as F

from unseen.core import decimal, frac, terminates


def put(m, env="pmatrix", sep=" & ", row=" \\\\ ", f=frac):
    """The matrix m as LaTeX."""
    return f"\\begin{{{env}}}{row.join(sep.join(f(x) for x in line) for line in m)}\\end{{{env}}}"


def slash(q):
    q = F(q)
    return str(q.numerator) if q.denominator == 1 else "%d/%d" % (q.numerator, q.denominator)


def dec(q):
    return decimal(q) if terminates(q) else frac(q)


def matrices(book, n=110):
    """Matrices up to 3 by 4, with integers, fractions, or a letter."""
    r = random.Random(601)
    kind = "matrices"
    done = 0
    while done < n:
        rows, cols = r.choice(
            [(2, 2), (2, 2), (2, 2), (3, 3), (3, 3), (2, 3), (3, 2), (1, 3), (2, 4)]
        )
        d = r.choice([1, 1, 1, 2, 3, 5, 7])
        if r.random() < 0.08 and rows == cols:
            m = [
                [F(r.choice([1, -1, 3])) if i == j else F(0) for j in range(cols)]
                for i in range(rows)
            ]
        else:
            m = [[F(r.randint(-12, 15), d) for _ in range(cols)] for _ in range(rows)]
        v = tuple(tuple(x) for x in m)
        gold = put(
            m,
            r.choice(["pmatrix", "pmatrix", "bmatrix"]),
            r.choice([" & ", "&"]),
            r.choice([" \\\\ ", "\\\\"]),
            r.choice([frac, frac, slash]),
        )
        right = [
            (s, v)
            for s in [
                put(m),
                put(m, "bmatrix"),
                put(m, "bmatrix", "&", "\\\\"),
                put(m, "pmatrix", "&", "\\\\"),
                f"${put(m)}$",
                put(m, "pmatrix", f=slash),
                put(m, "bmatrix", f=dec),
                put(m, "pmatrix", f=lambda q: frac(q, "\\dfrac")),
                "\\left[\\begin{{array}}{{{}}}{}\\end{{array}}\\right]".format(
                    "c" * cols, put(m, "x")[9:-7]
                ),
                "\\left(\\begin{{array}}{{{}}}{}\\end{{array}}\\right)".format(
                    "r" * cols, put(m, "x")[9:-7]
                ),
                "\\left[\\begin{{matrix}}{}\\end{{matrix}}\\right]".format(put(m, "x")[9:-7]),
                put(m, "bmatrix", row=" \\\\[4pt] "),
            ]
        ]

        def tup(t):
            return tuple(tuple(x) for x in t)

        i, j = r.randrange(rows), r.randrange(cols)

        def swap(f):
            t = [list(x) for x in m]
            t[i][j] = f(t[i][j])
            return t

        bad = [
            swap(lambda x: x + 1),
            swap(lambda x: -x),
            swap(lambda x: x - 1),
            swap(lambda x: 10 * x),
            [[-x for x in y] for y in m],
            [list(x) for x in zip(*m, strict=False)],
            m[::-1],
            [y[::-1] for y in m],
            m[:-1] if rows > 1 else [m[0][:-1]],
            [y[:-1] for y in m] if cols > 1 else m,
            [*m, [F(0)] * cols],
            [[*y, F(0)] for y in m],
            [[2 * x for x in y] for y in m],
            [[x / 2 for x in y] for y in m],
            [[x for y in m for x in y]],
            [[x + 1 for x in y] for y in m],
            [[x] for y in m for x in y],
        ]
        wrong = [(put(b, r.choice(["pmatrix", "bmatrix"])), tup(b)) for b in bad]
        w = put(m)
        wrong += [f"{w}, {put(swap(lambda x: x + 2))}", "\\neq " + w, "\\text{not } " + w]
        if rows == cols and any(x for y in m for x in y):
            wrong += ["2" + w]
        done += book.add(kind, gold, right, wrong, v, r)
    c, s = "\\cos\\theta", "\\sin\\theta"
    for g, ri, wr in [
        (
            [[c, "-" + s], [s, c]],
            [[[c.replace("\\theta", " \\theta"), "-" + s], [s, c]]],
            [
                [[c, s], ["-" + s, c]],
                [[s, "-" + c], [c, s]],
                [[c, "-" + s], [s, "-" + c]],
                [["\\cos x", "-\\sin x"], ["\\sin x", "\\cos x"]],
                [[c, "-" + s], ["-" + s, c]],
                [["1", "0"], ["0", "1"]],
            ],
        ),
        (
            [["a", "b"], ["c", "d"]],
            [[["a", "  b"], ["c", "d"]]],
            [
                [["a", "c"], ["b", "d"]],
                [["d", "-b"], ["-c", "a"]],
                [["A", "B"], ["C", "D"]],
                [["a", "b"], ["c", "c"]],
                [["b", "a"], ["d", "c"]],
                [["x", "y"], ["z", "w"]],
                [["a", "b"]],
            ],
        ),
        (
            [["1", "n"], ["0", "1"]],
            [[["1", "n"], ["0", "1.0"]]],
            [
                [["1", "0"], ["n", "1"]],
                [["1", "N"], ["0", "1"]],
                [["1", "2n"], ["0", "1"]],
                [["1", "-n"], ["0", "1"]],
                [["n", "1"], ["1", "0"]],
                [["1", "n+1"], ["0", "1"]],
                [["1", "1"], ["0", "1"]],
            ],
        ),
        (
            [["\\lambda", "1"], ["0", "\\lambda"]],
            [[["\\lambda ", "1"], ["0", "\\lambda "]]],
            [
                [["\\lambda", "0"], ["1", "\\lambda"]],
                [["\\mu", "1"], ["0", "\\mu"]],
                [["\\lambda", "1"], ["0", "1"]],
                [["\\Lambda", "1"], ["0", "\\Lambda"]],
                [["-\\lambda", "1"], ["0", "-\\lambda"]],
                [["\\lambda", "1"], ["1", "\\lambda"]],
            ],
        ),
        (
            [
                ["\\frac{\\sqrt{2}}{2}", "-\\frac{\\sqrt{2}}{2}"],
                ["\\frac{\\sqrt{2}}{2}", "\\frac{\\sqrt{2}}{2}"],
            ],
            [
                [
                    ["\\frac{1}{\\sqrt{2}}", "-\\frac{1}{\\sqrt{2}}"],
                    ["\\frac{1}{\\sqrt{2}}", "\\frac{1}{\\sqrt{2}}"],
                ]
            ],
            [
                [
                    ["\\frac{\\sqrt{2}}{2}", "\\frac{\\sqrt{2}}{2}"],
                    ["-\\frac{\\sqrt{2}}{2}", "\\frac{\\sqrt{2}}{2}"],
                ],
                [["0.707", "-0.707"], ["0.707", "0.707"]],
                [["\\frac12", "-\\frac12"], ["\\frac12", "\\frac12"]],
                [["\\sqrt2", "-\\sqrt2"], ["\\sqrt2", "\\sqrt2"]],
                [
                    ["\\frac{\\sqrt{3}}{2}", "-\\frac{\\sqrt{3}}{2}"],
                    ["\\frac{\\sqrt{3}}{2}", "\\frac{\\sqrt{3}}{2}"],
                ],
            ],
        ),
    ]:

        def st(x):
            return x

        book.add(
            kind,
            put(g, f=st),
            [put(g, "bmatrix", f=st), f"${put(g, f=st)}$", put(g, "pmatrix", "&", "\\\\", st)]
            + [put(x, e, f=st) for x in ri for e in ("pmatrix", "bmatrix")],
            [put(x, f=st) for x in wr],
        )


def build(book):
    matrices(book)
