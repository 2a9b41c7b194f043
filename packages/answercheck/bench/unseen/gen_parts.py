"""Cases with several named parts (x=1, y=2), and with infinity, no solution, or undefined."""

import random
from fractions import Fraction as F

from unseen.core import forms, frac

INF = "infinity and no solution"


def parts(book, n=110):
    """Two to four named values."""
    r = random.Random(901)
    kind = "several-part answers"
    done = 0
    while done < n:
        names = r.choice(
            [
                ["x", "y"],
                ["x", "y"],
                ["x", "y"],
                ["a", "b"],
                ["m", "n"],
                ["p", "q"],
                ["x", "y", "z"],
                ["a", "b", "c"],
                ["A", "B"],
                ["A", "B", "C"],
                ["h", "k", "r"],
                ["\\alpha", "\\beta"],
                ["u", "v"],
                ["a", "b", "c", "d"],
                ["r", "\\theta"],
                ["n", "S"],
            ]
        )
        vals = [F(r.randint(-12, 25), r.choice([1, 1, 1, 2, 3, 5])) for _ in names]
        v = dict(zip(names, vals, strict=False))

        def eq(k, q, g="="):
            return f"{k}{g}{frac(q)}"

        def put(d, sep=", ", g="="):
            return sep.join(eq(k, d[k], g) for k in d)

        def val(d):
            return tuple(sorted(d.items()))

        rev = dict(list(v.items())[::-1])

        def alt(d, sep=", "):
            return sep.join(
                "{} = {}".format(
                    k,
                    r.choice(
                        [
                            f
                            for f in forms(d[k], r)
                            if "$" not in f and "\\(" not in f and "{,}" not in f
                        ]
                    ),
                )
                for k in d
            )

        gold = put(v, r.choice([", ", ",", ",\\ ", ", \\quad "]), r.choice(["=", " = "]))
        right = [
            (s, val(v))
            for s in [
                put(v),
                put(rev),
                put(v, ",\\; "),
                put(v, ", ", " = "),
                f"${put(v)}$",
                alt(v),
                alt(rev),
                put(v, ",\\quad "),
                put(rev, ",", " = "),
            ]
        ]
        if len(names) == 2:
            right += [(put(v, " \\text{ and } "), val(v)), (put(rev, " and "), val(v))]
        else:
            right += [
                (
                    f"{put(dict(list(v.items())[:-1]))}, \\text{{ and }} {eq(names[-1], vals[-1])}",
                    val(v),
                )
            ]
        k, o = names[0], names[1]

        def ch(key, f):
            return dict(v, **{key: f(v[key])})

        drop = dict(v)
        del drop[k]
        drop2 = dict(v)
        del drop2[names[-1]]
        rot = dict(zip(names, vals[1:] + vals[:1], strict=False))
        wr = [
            ch(k, lambda z: z + 1),
            ch(o, lambda z: z + 1),
            ch(k, lambda z: -z),
            ch(names[-1], lambda z: -z),
            ch(o, lambda z: z * 10),
            ch(k, lambda z: z - 1),
            drop,
            drop2,
            rot,
            dict(v, w=F(3)),
            {q: -z for q, z in v.items()},
            dict(list(zip(["s", "t", "f", "g"], vals, strict=False))),
        ]
        wrong = [
            (put(d, r.choice([", ", ", ", ","]), r.choice(["=", " = "])), val(d)) for d in wr if d
        ]
        wrong += [
            f"{k}={k}",
            "0=0",
            "not " + put(v),
            put(v).replace("=", "\\neq"),
            "\\text{no solution}",
        ]
        case = {(q.swapcase() if len(q) == 1 else q + "'"): z for q, z in v.items()}
        wrong.append((put(case), val(case)))
        wrong.append(
            f"{k}={frac(vals[0])}, {o}>{frac(vals[1])}"
            + "".join(", " + eq(a, b) for a, b in list(v.items())[2:])
        )
        if len(set(vals)) > 1:
            wrong.append("=".join(names) + "=" + frac(vals[0]))
        done += book.add(kind, gold, right, wrong, val(v), r, max_wrong=12)


def infinite(book):
    """Infinite limits, alone and together with a number; lists with an infinite value."""
    inf_w = [
        "-\\infty",
        "0",
        "1",
        "\\text{undefined}",
        "\\emptyset",
        "10^{100}",
        "x",
        "\\pm\\infty",
        "\\infty, 0",
        "\\infty \\text{ or } 1",
        "\\neq \\infty",
        "not \\infty",
        "\\text{no solution}",
        "\\frac{1}{\\infty}",
        "8",
        "999999",
        "\\pi",
        "\\text{finite}",
    ]
    inf_r = [
        "+\\infty",
        "\\infty",
        "$\\infty$",
        "+ \\infty",
        "\\(\\infty\\)",
        "{\\infty}",
        "$+\\infty$",
    ]
    for g in [
        "\\infty",
        "+\\infty",
        "x = \\infty",
        "$\\infty$",
        "\\lim_{x\\to 0}\\frac{1}{x^2}=\\infty",
    ]:
        book.add(
            INF,
            g,
            (
                inf_r
                if "lim" not in g
                else [
                    "\\lim_{x \\to 0} \\frac{1}{x^2} = +\\infty",
                    "\\lim_{x\\to0}\\frac{1}{x^2}=\\infty",
                    "$" + g + "$",
                ]
            )
            + (["x=\\infty", "x = +\\infty"] if g[0] == "x" else []),
            inf_w,
            max_wrong=14,
        )
    neg = [w for w in inf_w if w != "-\\infty"] + ["\\infty", "+\\infty", "-1", "-(-\\infty)"]
    book.add(
        INF,
        "-\\infty",
        ["- \\infty", "$-\\infty$", "-{\\infty}", "\\(-\\infty\\)", "-\\,\\infty"],
        neg,
        max_wrong=14,
    )
    book.add(
        INF,
        "x = -\\infty",
        ["x=-\\infty", "-\\infty", "$x = -\\infty$", "x = - \\infty"],
        neg,
        max_wrong=14,
    )
    none_r = [
        "\\emptyset",
        "\\varnothing",
        "\\text{No solution}",
        "\\{\\}",
        "no solution",
        "\\text{no solution}",
        "\\{ \\}",
        "$\\emptyset$",
        "\\text{No Solution}",
        "No solution",
        "\\mathrm{no\\ solution}",
        "\\textbf{No solution}",
    ]
    none_w = [
        "0",
        "\\{0\\}",
        "x=0",
        "1",
        "\\mathbb{R}",
        "\\infty",
        "(-\\infty,\\infty)",
        "x=1",
        "\\text{one solution}",
        "\\text{infinitely many solutions}",
        "\\text{all real numbers}",
        "\\text{two solutions}",
        "\\text{a solution}",
        "-1",
        "\\{1\\}",
        "0=0",
        "x=x",
        "\\text{not no solution}",
        "\\text{no solution or } x = 2",
        "\\emptyset, 1",
        "\\text{exactly one solution}",
        "\\text{no solution except } x=0",
    ]
    for g in none_r:
        book.add(INF, g, none_r, none_w, max_right=9, max_wrong=16)
    und_w = [
        "0",
        "1",
        "\\text{defined}",
        "\\text{exists}",
        "\\text{does exist}",
        "2",
        "x",
        "\\text{not undefined}",
        "\\text{not divergent}",
        "0=0",
        "\\text{undefined or } 1",
        "\\pi",
        "\\text{converges}",
        "\\text{continuous}",
    ]
    for g, ri in [
        (
            "\\text{undefined}",
            [
                "undefined",
                "\\text{Undefined}",
                "\\mathrm{undefined}",
                "Undefined",
                "\\text{undefined }",
            ],
        ),
        (
            "\\text{does not exist}",
            [
                "does not exist",
                "\\text{Does not exist}",
                "\\mathrm{does\\ not\\ exist}",
                "Does Not Exist",
            ],
        ),
        ("\\text{DNE}", ["DNE", "\\mathrm{DNE}", "dne", "\\textbf{DNE}"]),
        ("\\text{diverges}", ["diverges", "\\text{Diverges}", "\\mathrm{diverges}", "Diverges"]),
        (
            "\\text{infinitely many solutions}",
            [
                "infinitely many solutions",
                "\\text{Infinitely many solutions}",
                "\\textbf{infinitely many solutions}",
            ],
        ),
        (
            "\\text{divergent}",
            ["divergent", "\\text{Divergent}", "\\textbf{divergent}", "Divergent"],
        ),
        (
            "\\text{no real solutions}",
            ["no real solutions", "\\text{No real solutions}", "No real solutions"],
        ),
        (
            "\\text{infinitely many}",
            ["infinitely many", "Infinitely many", "\\textbf{infinitely many}"],
        ),
    ]:
        book.add(
            INF,
            g,
            ri,
            [w for w in und_w if not ("many" in g and w in ("0=0", "x"))]
            + (["\\text{finitely many}", "\\text{no more than one}"] if "many" in g else []),
            max_wrong=14,
        )
    for g, ri in [
        (
            "(-\\infty,\\infty)",
            [
                "\\mathbb{R}",
                "(-\\infty, +\\infty)",
                "x \\in \\mathbb{R}",
                "\\left(-\\infty,\\infty\\right)",
                "(-\\infty, \\infty)",
            ],
        ),
        (
            "\\mathbb{R}",
            ["(-\\infty,\\infty)", "x\\in\\mathbb{R}", "(-\\infty,+\\infty)", "$\\mathbb{R}$"],
        ),
        ("x\\in\\mathbb{R}", ["\\mathbb{R}", "(-\\infty,\\infty)", "x \\in (-\\infty,\\infty)"]),
    ]:
        book.add(
            INF,
            g,
            ri,
            [
                "\\emptyset",
                "[0,\\infty)",
                "(0,\\infty)",
                "(-\\infty,0)",
                "\\infty",
                "-\\infty",
                "(-\\infty,0)\\cup(0,\\infty)",
                "\\mathbb{Z}",
                "\\mathbb{Q}",
                "\\mathbb{C}",
                "0",
                "\\{-\\infty,\\infty\\}",
                "(-\\infty,1]",
                "(\\infty,-\\infty)",
            ],
            max_wrong=14,
        )
    r = random.Random(902)
    done = 0
    while done < 60:
        q = F(r.randint(-9, 30), r.choice([1, 1, 1, 2, 3]))
        s, sg = frac(q), r.choice(["", "-"])
        o = "-" if not sg else ""
        A, B = sg + "\\infty", o + "\\infty"
        if r.random() < 0.5:
            gold = r.choice([f"{A}, {s}", f"{s}, {A}", f"{s} \\text{{ and }} {A}"])
            right = [
                f"{A}, {s}",
                f"{s},{A}",
                f"{A} \\text{{ and }} {s}",
                f"{s} and {A}",
                f"\\{{{s}, {A}\\}}",
            ] + ([(f"{s}, +\\infty")] if not sg else [])
            wrong = [
                f"{B}, {s}",
                A,
                s,
                f"{A}, {frac(q + 1)}",
                f"{A}, {frac(-q)}" if q else A + ", 3",
                f"{A}, {s}, 1000",
                f"{A}, {B}",
                f"{s}, 100",
                f"\\neq {A}, {s}",
                "\\emptyset",
                f"{A}, {B}, {s}",
            ]
        else:
            x, y = r.choice([("a", "b"), ("L", "M"), ("x", "y"), ("p", "q")])
            gold = f"{x} = {s}, {y} = {A}"
            right = [
                f"{y}={A}, {x}={s}",
                f"{x}={s},\\ {y}={A}",
                f"{x} = {s} \\text{{ and }} {y} = {A}",
                f"${x}={s}, {y}={A}$",
            ] + ([f"{x}={s}, {y}=+\\infty"] if not sg else [])
            wrong = [
                f"{x}={A}, {y}={s}",
                f"{x}={s}, {y}={B}",
                f"{x}={s}",
                f"{y}={A}",
                f"{x}={frac(q + 1)}, {y}={A}",
                f"{x}={s}, {y}=0",
                f"{x}={s}, {x}={A}",
                f"{x}={s}, {y}={A}, c=0",
                "0=0",
                f"{x}={s}, w={A}",
                f"{x.swapcase()}={s}, {y.swapcase()}={A}",
            ]
        done += book.add(INF, gold, right, wrong, None, r)


def build(book):
    parts(book)
    infinite(book)
