"""Cases whose gold is a set, a list of several values, or a tuple, point or vector."""

import random
from fractions import Fraction as F

import sympy as sp

from unseen.core import decimal, frac, terminates

ROOTS = [
    ("\\sqrt{2}", sp.sqrt(2)),
    ("\\sqrt{3}", sp.sqrt(3)),
    ("\\sqrt{5}", sp.sqrt(5)),
    ("2\\sqrt{3}", 2 * sp.sqrt(3)),
    ("\\pi", sp.pi),
    ("\\frac{\\pi}{2}", sp.pi / 2),
    ("\\frac{\\pi}{3}", sp.pi / 3),
    ("1+\\sqrt{2}", 1 + sp.sqrt(2)),
    ("\\frac{\\sqrt{3}}{2}", sp.sqrt(3) / 2),
    ("i", sp.I),
    ("2i", 2 * sp.I),
    ("1+i", 1 + sp.I),
    ("\\ln 2", sp.log(2)),
    ("e", sp.E),
]


def element(r, exotic=0.15):
    """A random element as (spelling, value)."""
    if r.random() < exotic:
        s, v = r.choice(ROOTS)
        return (s, v) if r.random() < 0.7 or "+" in s else ("-" + s, -v)
    q = F(r.randint(-15, 40), r.choice([1, 1, 1, 1, 2, 3, 4, 7]))
    return (frac(q), sp.Rational(q.numerator, q.denominator))


def distinct(k, r, exotic=0.15):
    out = {}
    while len(out) < k:
        s, v = element(r, exotic)
        if v not in out.values():
            out[s] = v
    return list(out.items())


def respell(e, r):
    """Another spelling of the same element."""
    s, v = e
    if v.is_Rational and not v.is_Integer:
        q = F(int(v.p), int(v.q))
        opts = [s.replace("\\frac", "\\dfrac"), "%d/%d" % (v.p, v.q), frac(q, "\\tfrac")]
        return (r.choice(opts + ([decimal(q)] if terminates(q) else [])), v)
    if s == "\\frac{\\sqrt{3}}{2}":
        return ("\\frac{1}{2}\\sqrt{3}", v)
    return (s.replace("\\frac", "\\dfrac"), v)


def changed(es, r):
    """Lists that differ: one element changed, negated, left out, or added."""
    out = []
    i = r.randrange(len(es))
    for f in (lambda v: v + 1, lambda v: -v, lambda v: v * 10, lambda v: v - 1, lambda v: v / 2):
        w = f(es[i][1])
        out.append([*es[:i], (sp.latex(w), w), *es[i + 1 :]])
    out.append(es[:i] + es[i + 1 :])
    out.append([*es, element(r)])
    out.append([element(r, 0), *es])
    out.append([(sp.latex(-v), -v) for _, v in es])
    out.append([(sp.latex(v + 1), v + 1) for _, v in es])
    if len(es) > 2:
        out.append(es[:1])
        out.append(es[:-2] + es[-1:])
    return [o for o in out if o]


def val(es):
    return frozenset(sp.nsimplify(v) if v.is_Rational else v for _, v in es)


def join(es, sep=", "):
    return sep.join(s for s, _ in es)


def brace(es, sep=", ", big=False):
    return ("\\left\\{" if big else "\\{") + join(es, sep) + ("\\right\\}" if big else "\\}")


def several(book, kind, n, seed, braces):
    """Sets in braces, or plain lists; both in any order."""
    r = random.Random(seed)
    done = 0
    while done < n:
        es = distinct(r.choice([2, 2, 2, 3, 3, 4, 5] if not braces else [2, 3, 3, 4, 5, 6]), r)
        v = val(es)
        mix = es[:]
        r.shuffle(mix)
        tidy = sorted(es, key=lambda e: (float(sp.re(e[1])), float(sp.im(e[1]))))
        numeric = all(e[1].is_real for e in es)
        sep = r.choice([",", ", ", ", ", ",\\, "])
        if braces:
            gold = brace(es, sep, "\\frac" in join(es) and r.random() < 0.5)
        else:
            gold = join(
                es,
                r.choice(
                    [
                        sep,
                        sep,
                        sep,
                        " \\text{ and } " if len(es) == 2 else sep,
                        " \\text{ or } " if len(es) == 2 else sep,
                    ]
                ),
            )
            if r.random() < 0.15:
                gold = ", ".join("x = " + s for s, _ in es)
        sp2 = [respell(e, r) for e in mix]
        right = [
            join(mix),
            join(es, ","),
            brace(mix),
            brace(es, ",", True),
            join(sp2),
            join(es[::-1], ",\\; "),
            f"${join(tidy)}$",
            join(tidy),
            ", ".join("x=" + s for s, _ in mix),
            " or ".join("x = " + s for s, _ in tidy),
        ]
        if braces:
            right += [
                brace(mix + mix[:1]),
                brace(sp2),
                "\\{{ {} \\}}".format(join(tidy, " , ")),
                f"${brace(tidy)}$",
                brace(tidy, ",\\ "),
            ]
        if len(es) == 2:
            right += [
                join(mix, " \\text{ and } "),
                join(mix, " and "),
                join(mix, " \\text{ or } "),
                join(es[::-1], " or "),
            ]
        else:
            right += [
                f"{join(mix[:-1])}, and {mix[-1][0]}",
                f"{join(mix[:-1])} \\text{{ and }} {mix[-1][0]}",
                "x = " + join(tidy),
            ]
        wrong = []
        for c in changed(es, r):
            c = c if r.random() < 0.5 else c[::-1]
            style = r.random()
            s = (
                brace(c)
                if style < (0.6 if braces else 0.2)
                else join(c)
                if style < 0.9 or len(c) < 2
                else ", ".join("x = " + t for t, _ in c)
            )
            wrong.append((s, val(c)))
        _first, _rest = es[0], es[1:]
        wrong += [
            "\\neq " + join(es),
            "not " + join(es),
            " \\text{ or not } ".join(s for s, _ in es[:2]),
            brace(es) + " \\cup \\{1000\\}",
            "\\emptyset",
            "x \\notin " + brace(es),
            ", ".join("x \\neq " + s for s, _ in es),
            "\\mathbb{R} \\setminus " + brace(es),
        ]
        if all(e[1].is_Integer and e[1] > 0 for e in es):
            wrong += ["".join(s for s, _ in es)] * 1
        if numeric:
            lo, hi = tidy[0], tidy[-1]
            wrong += [f"{lo[0]} < x < {hi[0]}", f"{lo[0]} \\le x \\le {hi[0]}"]
            if len(es) > 2:
                wrong += [f"[{lo[0]}, {hi[0]}]", f"({lo[0]}, {hi[0]})"]
        irr = [e for e in es if numeric and not e[1].is_Rational] or [
            e for e in es if e[1].is_Rational and not terminates(F(int(e[1].p), int(e[1].q)))
        ]
        if irr:
            wrong.append(join([(f"{float(e[1]):.3f}", 0) if e is irr[0] else e for e in es]))
        done += book.add(kind, gold, right, wrong, v, r)


def plus_minus(book):
    """Pairs written with a plus-minus sign."""
    r = random.Random(503)
    kind = "lists of several values"
    for a, s in [
        (0, "3"),
        (0, "\\sqrt{5}"),
        (1, "\\sqrt{19}"),
        (3, "2\\sqrt{2}"),
        (-2, "\\sqrt{7}"),
        (5, "3i"),
        (-1, "2i"),
        (0, "\\frac{1}{2}"),
        (2, "\\sqrt{3}"),
        (-4, "\\sqrt{11}"),
        (0, "6"),
        (0, "2\\sqrt{3}"),
        (0, "\\frac{\\sqrt{2}}{2}"),
        (7, "\\sqrt{2}"),
    ]:
        h = str(a) if a else ""
        gold = f"{h} \\pm {s}"
        p, m = ("%d+%s" % (a, s), "%d-%s" % (a, s)) if a else (s, "-" + s)
        b = str(a + 1)
        right = [
            f"{h}\\pm {s}",
            f"x = {h} \\pm {s}",
            f"{p}, {m}",
            f"{m}, {p}",
            f"\\{{{m}, {p}\\}}",
            f"{p} \\text{{ or }} {m}",
            f"x={m}, x={p}",
            f"{m} \\text{{ and }} {p}",
        ]
        wrong = [
            p,
            m,
            "x = " + p,
            f"{b} \\pm {s}",
            f"{h} \\pm 4{s}" if s[0] == "\\" else f"{h} \\pm 1{s}",
            f"{p}, {m}, 0",
            "{}, {}".format(p, b + "-" + s),
            f"{p}, {p}",
            f"\\neq {h} \\pm {s}",
            f"\\{{{m}\\}}",
            f"{h} \\pm ({s})^2" if s != "1" else "0",
        ]
        if a:
            wrong += ["%d \\pm %s" % (-a, s), f"\\pm {s}", "%s \\pm %d" % (s, a)]
        book.add(kind, gold, right, wrong, None, r)


def tuples(book, n=120):
    """Points and tuples with two to five parts, angle bracket vectors, column and row vectors."""
    r = random.Random(504)
    kind = "tuples, points and vectors"
    done = 0
    while done < n:
        k = r.choice([2, 2, 2, 3, 3, 3, 4, 5])
        es = [element(r, 0.12) for _ in range(k)]
        style = r.random()
        v = tuple(x for _, x in es)
        sh = es[:]
        r.shuffle(sh)
        bad = [
            *list(changed(es, r)),
            es[::-1],
            sh,
            es[1:] + es[:1],
            es + es[-1:],
            [*es, ("0", sp.Integer(0))],
        ]
        if k == 2:
            bad = [b for b in bad if len(b) > 1] + [[es[0], es[0]], [es[1], es[1]]]
        sp2 = [respell(e, r) for e in es]

        def tv(b):
            return tuple(x for _, x in b)

        if style < 0.55:

            def put(b, sep=", ", big=False):
                return ("\\left(" if big else "(") + join(b, sep) + ("\\right)" if big else ")")
        elif style < 0.7:

            def put(b, sep=", ", big=False):
                return (
                    ("\\left\\langle " if big else "\\langle ")
                    + join(b, sep)
                    + (" \\right\\rangle" if big else " \\rangle")
                )
        elif style < 0.93:

            def put(b, sep=", ", big=False, env="pmatrix"):
                return "\\begin{{{}}} {} \\end{{{}}}".format(env, join(b, " \\\\ "), env)
        else:

            def put(b, sep=", ", big=False, env="pmatrix"):
                return "\\begin{{{}}} {} \\end{{{}}}".format(env, join(b, " & "), env)

        gold = put(es, r.choice([",", ", "]), "\\frac" in join(es) and r.random() < 0.6)
        right = [
            (s, v)
            for s in [
                put(es),
                put(es, ","),
                put(es, ", ", True),
                put(es, ",\\, "),
                put(sp2),
                f"${put(es)}$",
                put(es, " , "),
                put(sp2, ",", True),
                put(es, ",\\ "),
            ]
        ]
        wrong = [(put(b), tv(b)) for b in bad if len(b) > 1 or style >= 0.7]
        if style >= 0.7:
            amp = style >= 0.93
            sep, other = (" & ", " \\\\ ") if amp else (" \\\\ ", " & ")

            def env(b, e, s=sep):
                return f"\\begin{{{e}}}{join(b, s)}\\end{{{e}}}"

            right += [
                (env(es, "bmatrix"), v),
                (env(es, "pmatrix"), v),
                (env(sp2, "bmatrix"), v),
                (env(es, "bmatrix", sep.strip()), v),
                (f"\\left(\\begin{{matrix}}{join(es, sep)}\\end{{matrix}}\\right)", v),
                (
                    "\\left[\\begin{{array}}{{{}}}{}\\end{{array}}\\right]".format(
                        "c" * (k if amp else 1), join(es, sep)
                    ),
                    v,
                ),
            ]
            wrong += [env(es, "pmatrix", other), env(es, "bmatrix", other)]
        else:
            w = put(es)
            wrong += [
                "\\neq " + w,
                "not " + w,
                f"{w}, {put(es[::-1] if tv(es[::-1]) != v else es + es)}",
                "{} \\text{{ or }} {}".format(w, put([("100", 0), *es[1:]])),
                "x = " + es[0][0],
                es[0][0],
                es[-1][0],
            ]
            if any(x != 0 for x in v):
                wrong += ["-" + w, "2" + w, "3 \\cdot " + w]
            if style < 0.55:
                wrong += [w[:-1] + "]", "[" + w[1:]] if k == 2 else []
        done += book.add(kind, gold, right, wrong, v, r)
    for g, ri, wr in [
        (
            "2\\mathbf{i}-3\\mathbf{j}",
            [
                "-3\\mathbf{j}+2\\mathbf{i}",
                "2\\mathbf{i} - 3\\mathbf{j}",
                "2\\,\\mathbf{i}-3\\,\\mathbf{j}",
                "-(3\\mathbf{j}-2\\mathbf{i})",
            ],
            [
                "3\\mathbf{i}-2\\mathbf{j}",
                "2\\mathbf{i}+3\\mathbf{j}",
                "-2\\mathbf{i}-3\\mathbf{j}",
                "2\\mathbf{i}",
                "-3\\mathbf{i}+2\\mathbf{j}",
                "2\\mathbf{i}-3\\mathbf{k}",
                "-1",
                "2\\mathbf{i}-3\\mathbf{j}+\\mathbf{k}",
                "2\\mathbf{i}-3",
            ],
        ),
        (
            "\\left( 3, \\frac{\\pi}{2} \\right)",
            [
                "(3,\\pi/2)",
                "(3, \\frac{\\pi}{2})",
                "\\left(3,\\frac{\\pi}{2}\\right)",
                "(3,\\dfrac{\\pi}{2})",
                "(3, 0.5\\pi)",
            ],
            [
                "(\\frac{\\pi}{2}, 3)",
                "(3, \\pi)",
                "(-3, \\frac{\\pi}{2})",
                "(3, -\\frac{\\pi}{2})",
                "(3, 1.57)",
                "(3, 1.5707963)",
                "(3)",
                "(3, \\frac{\\pi}{2}, 0)",
                "(3, \\frac{1}{2})",
                "(3, 90)",
            ],
        ),
        (
            "(x, y, z) = (1, 2, 3)",
            [
                "(x,y,z)=(1,2,3)",
                "\\left(x,y,z\\right)=\\left(1,2,3\\right)",
                "(x, y, z) = (1.0, 2, 3)",
            ],
            [
                "(x,y,z)=(3,2,1)",
                "(x,y)=(1,2)",
                "(x,y,z)=(1,2,4)",
                "(1,3,2)",
                "(x,y,z)=(x,y,z)",
                "(x,z,y)=(1,2,3)",
                "(a,b,c)=(1,2,3)",
            ],
        ),
        (
            "(2a, a-1)",
            ["(2a, -1+a)", "\\left(2a,a-1\\right)", "(2a,a-1)", "(2 a, a - 1)"],
            [
                "(a-1, 2a)",
                "(2a, a+1)",
                "(2b, b-1)",
                "(a, a-1)",
                "(2a, 1-a)",
                "(2A, A-1)",
                "(2a, a)",
                "(2, -1)",
                "(2a, a-1, 0)",
            ],
        ),
    ]:
        book.add(kind, g, ri, wr)


def points_list(book):
    """Lists of points, in any order of the points but not of their parts."""
    r = random.Random(505)
    kind = "lists of several values"
    done = 0
    while done < 25:
        ps = [(r.randint(-9, 12), r.randint(-9, 12)) for _ in range(r.choice([2, 2, 3]))]
        if len(set(ps)) < len(ps):
            continue

        def put(qs, sep=", ", c=", "):
            return sep.join("(%d%s%d)" % (a, c, b) for a, b in qs)

        v = frozenset(ps)
        a, b = ps[0]
        right = [
            (s, v)
            for s in [
                put(ps[::-1]),
                put(ps, ",", ","),
                put(ps, ",\\; "),
                f"\\{{{put(ps)}\\}}",
                f"\\{{{put(ps[::-1])}\\}}",
                f"${put(ps)}$",
            ]
        ]
        if len(ps) == 2:
            right += [
                (put(ps, " \\text{ and } "), v),
                (put(ps[::-1], " and "), v),
                (put(ps, " \\text{ or } "), v),
            ]
        alt = [
            [(y, x) for x, y in ps],
            ps[1:],
            ps[:1],
            [(b, a), *ps[1:]],
            [(a + 1, b), *ps[1:]],
            [(a, -b), *ps[1:]],
            [*ps, (0, 0)],
            [(-x, -y) for x, y in ps],
            [(a, ps[1][1]), (ps[1][0], b), *ps[2:]],
            [*ps[:-1], (ps[-1][0], ps[-1][1] + 1)],
        ]
        wrong = [(put(q), frozenset(q)) for q in alt] + [
            "\\neq " + put(ps),
            "not " + put(ps),
            "\\{{{}\\}}".format(", ".join("%d, %d" % p for p in ps)),
            "(%d, %d, %d, %d)" % (ps[0] + ps[1]),
        ]
        done += book.add(kind, put(ps, c=r.choice([",", ", "])), right, wrong, v, r)


def build(book):
    several(book, "sets", 110, 501, True)
    several(book, "lists of several values", 100, 502, False)
    plus_minus(book)
    points_list(book)
    tuples(book)
