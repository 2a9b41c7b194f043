"""Cases whose gold is an equation: lines, planes, circles, parabolas, equations without real
solution, equations between numbers only, x = value, and functions f(x) = ..."""

import random
from fractions import Fraction as F

from unseen.core import forms, frac, near, rounded, show, terminates

KIND = "equations"


def side(d, order=None, cmd="\\frac"):
    """A sum of terms {letter part: coefficient} as LaTeX; '' is the constant part."""
    out = ""
    for k in order or list(d):
        c = F(d.get(k, 0))
        if not c:
            continue
        mag = frac(abs(c), cmd) if k == "" or abs(c) != 1 else ""
        out += (" - " if c < 0 else " + ") + mag + k
    if not out:
        return "0"
    return out[3:] if out.startswith(" + ") else "-" + out[3:]


def norm(d):
    """The equation d = 0 up to a nonzero factor."""
    d = {k: F(c) for k, c in d.items() if c}
    keys = sorted(d)
    return tuple((k, d[k] / d[keys[0]]) for k in keys)


def minus(a, b):
    return {k: F(a.get(k, 0)) - F(b.get(k, 0)) for k in dict.fromkeys(list(a) + list(b))}


def scale(d, k):
    return {x: F(c) * k for x, c in d.items()}


def eqn(a, b, order=None):
    """The equation a = b and its value."""
    return (f"{side(a, order)} = {side(b, order)}", norm(minus(a, b)))


def rename(s, m):
    return "".join(m.get(c, c) for c in s)


def common(s, r, letters="xy"):
    """Wrong answers for any equation s in given letters."""
    x, y = letters[0], letters[1]
    safe = "\\" not in s
    out = [
        "0=0",
        "1=1",
        f"{x}={x}",
        f"{y} = {y}",
        "0=1",
        f"{s} \\text{{ or }} {y} = {x} + 17",
        "\\text{not } " + s,
        s.replace("=", "\\neq"),
        s.replace("=", "<"),
        s.replace("=", "\\ge"),
        s + " + 1",
        "1 + " + s,
        s.replace("=", "+ 2 ="),
        "\\emptyset",
        f"{x}={x}+1",
    ]
    if safe:
        out += [
            rename(s, {x: x.upper()}),
            rename(s, {y: y.upper()}),
            rename(s, {x: "a", y: "b"}),
            rename(s, {x: "t"}),
        ]
    return out


def lines(book, n=60):
    """Lines in slope form and in general form, and planes."""
    r = random.Random(701)
    done = 0
    while done < n:
        a, b, c = r.randint(-9, 9), r.randint(-9, 9), r.randint(-15, 15)
        if not a or not b:
            continue
        three = r.random() < 0.25
        L = {"x": F(a), "y": F(b)}
        if three:
            L["z"] = F(r.choice([-11, -5, -2, 1, 3, 7]))
        full = dict(L, **{"": F(c)})
        slope = {k: -v / b for k, v in full.items() if k != "y"}
        v = norm(full)
        neg = {"": F(-c)}
        t = [
            eqn(full, {}),
            eqn(L, neg),
            eqn({"y": F(1)}, slope),
            eqn(slope, {"y": F(1)}),
            eqn(scale(full, -1), {}),
            eqn(scale(L, 2), scale(neg, 2)),
            eqn(neg, L),
            eqn({}, full),
            eqn(scale(full, 3), {}),
            eqn({"y": F(b)}, scale(slope, b)),
            eqn(minus({"y": F(1)}, slope), {}),
            eqn(full, {}, ["", "y", "x", "z"]),
            eqn({"y": F(1)}, slope, ["", "z", "x", "y"]),
        ]
        gold = (t[2] if r.random() < 0.5 and not three else t[r.randrange(2)])[0]
        gold = gold if r.random() < 0.6 else gold.replace(" ", "")
        right = [*t, (f"${gold}$", v), (gold.replace("\\frac", "\\dfrac"), v)]
        wrong = []
        for k in full:
            for f in (
                lambda z: -z,
                lambda z: z + 1,
                lambda z: 2 * z,
                lambda z: F(0),
                lambda z: z + 10,
            ):
                w = dict(full)
                w[k] = f(F(w[k]))
                if any(w[x] for x in w if x):
                    wrong.append(
                        r.choice(
                            [eqn(w, {}), eqn({x: w[x] for x in w if x}, {"": -w[""]})]
                            + (
                                [
                                    eqn(
                                        {"y": F(1)},
                                        {x: -z / w["y"] for x, z in w.items() if x != "y"},
                                    )
                                ]
                                * 2
                                if w["y"]
                                else []
                            )
                        )
                    )
        wrong = r.sample(wrong, 8)
        sw = {
            "x": full["y"],
            "y": full["x"],
            **{k: z for k, z in full.items() if k not in "xy" or k == ""},
        }
        wrong.append(eqn(sw, {}))
        wrong += r.sample(list(common(gold, r)), 7)
        if gold.startswith("y"):
            wrong.append(side(slope))
        done += book.add(KIND, gold, right, wrong, v, r, max_wrong=12)


def conics(book, n=45):
    """Circles, parabolas, ellipses and hyperbolas."""
    r = random.Random(702)
    done = 0
    while done < n:
        t = r.random()
        if t < 0.5:
            h, k, q = (
                r.randint(-7, 7),
                r.randint(-7, 7),
                r.choice([1, 2, 3, 4, 5, 9, 16, 25, 36, 49, 13, 20, 50]),
            )

            def put(h, k, q):
                return (
                    "%s + %s = %d" % (br("x", h), br("y", k), q),
                    norm({"x^2": 1, "y^2": 1, "x": -2 * h, "y": -2 * k, "": h * h + k * k - q}),
                )

            s, v = put(h, k, q)
            d = {"x^2": 1, "y^2": 1, "x": -2 * h, "y": -2 * k, "": h * h + k * k - q}
            lead = {x: d[x] for x in d if x}
            right = [
                put(h, k, q),
                eqn(d, {}),
                eqn(lead, {"": -d[""]}),
                ("%d = %s + %s" % (q, br("x", h), br("y", k)), v),
                ("%s + %s = %d" % (br("y", k), br("x", h), q), v),
                ("%s + %s - %d = 0" % (br("x", h), br("y", k), q), v),
                eqn(scale(d, 2), {}),
                (f"${s}$", v),
            ]
            wrong = [
                put(*w)
                for w in [
                    (-h, k, q),
                    (h, -k, q),
                    (-h, -k, q),
                    (k, h, q),
                    (h, k, q + 1),
                    (h, k, q * q),
                    (h, k, 2 * q),
                    (h + 1, k, q),
                    (h, k - 1, q),
                    (h, k, -q),
                    (0, 0, q),
                ]
            ]
            wrong += [
                (
                    "%s - %s = %d" % (br("x", h), br("y", k), q),
                    norm({"x^2": 1, "y^2": -1, "x": -2 * h, "y": 2 * k, "": h * h - k * k - q}),
                ),
                eqn(dict(d, **{"": d[""] + 1}), {}),
                eqn(dict(d, x=d["x"] + 1), {}),
            ]
        elif t < 0.85:
            a, h, k = (
                F(r.choice([1, 1, 2, -1, 3, -2, 1]), r.choice([1, 1, 1, 2, 4, 8])),
                r.randint(-6, 6),
                r.randint(-9, 9),
            )

            def pd(a, h, k):
                return {"x^2": a, "x": -2 * a * h, "": a * h * h + k}

            aa = side({"z": a})[:-1]
            d = pd(a, h, k)
            s, v = eqn({"y": F(1)}, d)
            right = [
                (s, v),
                eqn(d, {"y": F(1)}),
                eqn({"y": F(1)}, d, ["", "x", "x^2", "y"]),
                eqn(minus({"y": F(1)}, d), {}),
                ("y = {}{}{}".format(aa, br("x", h), side({"z": 1, "": k})[1:]), v),
                eqn({"y": F(a.denominator)}, scale(d, a.denominator)),
                eqn({"y": F(2)}, scale(d, 2)),
                (f"${s}$", v),
                eqn({"y": F(1), "": -d[""]}, {x: d[x] for x in ("x^2", "x")}),
            ]
            wrong = [
                eqn({"y": F(1)}, pd(*w))
                for w in [
                    (-a, h, k),
                    (a + 1, h, k) if a != -1 else (a - 1, h, k),
                    (a, -h, k),
                    (a, h, -k),
                    (a, h + 1, k),
                    (a, h, k + 1),
                    (2 * a, h, k),
                    (1 / a, h, k),
                ]
            ]
            wrong += [
                eqn({"x": F(1)}, {"y^2": d["x^2"], "y": d["x"], "": d[""]}),
                eqn({"y": F(1)}, {"x^2": d["x^2"], "": d[""]}),
                eqn({"y^2": F(1)}, d),
                side(d),
            ]
        else:
            p, q, op = r.choice([4, 9, 16, 25, 36]), r.choice([1, 4, 9, 7, 5, 16]), r.choice("+-")
            if p == q:
                continue
            m = 1 if op == "+" else -1

            def ell(p, q, m, c=1):
                return (
                    "\\frac{x^2}{%d} %s \\frac{y^2}{%d} = %d" % (p, "+" if m > 0 else "-", q, c),
                    norm({"x^2": F(1, p), "y^2": F(m, q), "": -c}),
                )

            s, v = ell(p, q, m)
            right = [
                (s, v),
                ("\\dfrac{x^2}{%d} %s \\dfrac{y^2}{%d} = 1" % (p, op, q), v),
                eqn({"x^2": F(q), "y^2": F(m * p)}, {"": F(p * q)}),
                ("1 = \\frac{x^2}{%d} %s \\frac{y^2}{%d}" % (p, op, q), v),
                eqn({"x^2": F(q), "y^2": F(m * p), "": -F(p * q)}, {}),
                ("x^2/%d %s y^2/%d = 1" % (p, op, q), v),
            ]
            wrong = [
                ell(q, p, m),
                ell(p, q, -m),
                ell(p + 1, q, m),
                ell(p, q + 1, m),
                ell(p, q, m, -1),
                ell(p, q, m, 2),
                ell(p, q, m, 0),
                ell(p * p, q * q, m),
                eqn({"x^2": F(p), "y^2": F(m * q)}, {"": F(1)}),
                eqn({"x^2": F(q), "y^2": F(m * p)}, {"": F(1)}),
            ]
        wrong += r.sample(list(common(s, r)), 6)
        gold = r.choice([x for x, _ in right if "$" not in x and not x.startswith("0 =")][:2])
        done += book.add(KIND, gold, right, wrong, v, r, max_wrong=12)


def br(x, h):
    """(x - h)^2 in usual spelling."""
    return x + "^2" if not h else "(%s %s %d)^2" % (x, "-" if h > 0 else "+", abs(h))


def no_real(book, n=22):
    """Polynomial equations without real solution."""
    r = random.Random(703)
    done = 0
    while done < n:
        x = r.choice("xxxtz")
        c, b, a = r.randint(1, 20), r.choice([0, 0, 1, -1, 2, -2]), r.choice([1, 1, 2, 3])
        if b * b >= 4 * a * c:
            continue
        X2, X = x + "^2", x
        d = {X2: F(a), X: F(b), "": F(c)}
        lead = {X2: F(a), X: F(b)}
        v = norm(d)
        s = eqn(d, {})[0]
        right = [
            eqn(d, {}),
            eqn(lead, {"": -F(c)}),
            eqn({}, d),
            eqn(scale(d, -1), {}),
            eqn(scale(d, 2), {}),
            eqn(d, {}, ["", X, X2]),
            (f"${s}$", v),
            eqn({X2: F(a)}, {X: -F(b), "": -F(c)}),
            (s.replace(" ", ""), v),
        ]
        wrong = [
            eqn(dict(d, **{k: z}), {})
            for k, z in [
                ("", -F(c)),
                ("", F(c + 1)),
                ("", F(2 * c)),
                (X, F(b + 1)),
                (X2, F(a + 1)),
                ("", F(c + 3)),
                (X2, -F(a)),
                (X, -F(b)),
            ]
        ]
        y = "y" if x != "y" else "w"
        wrong += [
            rename(s, {x: y}),
            rename(s, {x: x.upper()}),
            "0=0",
            "0=1",
            "1=0",
            f"{x}={x}",
            f"{x}^2={x}^2",
            eqn({x + "^4": F(a), "": F(c)}, {})[0],
            f"{x}=0",
            side(d),
            "%s^2=-%d" % (x, c + 7),
            s + "+1",
            s.replace("=", "\\neq"),
            s.replace("=", ">"),
        ]
        done += book.add(
            KIND, s.replace(" ", "") if r.random() < 0.5 else s, right, wrong, v, r, max_wrong=13
        )


def numbers_only(book):
    """Equations between numbers, such as a logarithm and its value."""
    cases = [
        (
            "\\log_4 8",
            "\\frac{3}{2}",
            [
                "\\log_4 8 = \\frac32",
                "\\log_{4}8=\\frac{3}{2}",
                "\\log_4 8 = 1.5",
                "\\frac{3}{2} = \\log_{4}{8}",
                "\\log_4(8)=3/2",
            ],
            ["\\log_8 4=\\frac{3}{2}", "\\log_4 8=\\frac{2}{3}", "\\log_4 8=2", "\\log_2 8=3"],
        ),
        (
            "\\log_2 32",
            "5",
            ["\\log_{2}32=5", "5=\\log_2 32", "\\log_2(32)=5", "\\log_{2}{32} = 5"],
            ["\\log_5 32=2", "\\log_2 5=32", "\\log_2 32=6", "\\log_{32} 2=5", "\\log_2 16=4"],
        ),
        (
            "\\log_9 27",
            "\\frac{3}{2}",
            ["\\log_{9}27=\\frac32", "\\log_9 27=1.5", "\\frac{3}{2}=\\log_9 27"],
            [
                "\\log_{27}9=\\frac{3}{2}",
                "\\log_9 27=3",
                "\\log_9 27=\\frac{2}{3}",
                "\\log_3 27=3",
                "\\log_9 81=2",
            ],
        ),
        (
            "3^4",
            "81",
            ["81=3^4", "3^{4}=81", "3^4 = 81", "$3^4=81$"],
            ["4^3=81", "3^4=64", "3^4=12", "4^3=64", "3^3=27", "3^{-4}=81", "81=81"],
        ),
        (
            "5^{-2}",
            "\\frac{1}{25}",
            ["5^{-2}=1/25", "\\frac{1}{25}=5^{-2}", "5^{-2}=0.04", "5^{-2} = \\dfrac{1}{25}"],
            [
                "5^{2}=\\frac{1}{25}",
                "5^{-2}=25",
                "5^{-2}=-25",
                "5^{-2}=-\\frac{1}{25}",
                "5^{-1}=\\frac15",
            ],
        ),
        (
            "\\log_{10} 0.01",
            "-2",
            [
                "-2=\\log_{10}0.01",
                "\\log_{10}(0.01)=-2",
                "\\log_{10}{0.01} = -2",
                "\\log_{10}\\frac{1}{100}=-2",
            ],
            [
                "\\log_{10} 0.01=2",
                "\\log_{10} 100=2",
                "\\log_{10} 0.1=-1",
                "\\log_{10} 0.01=-3",
                "\\log_{0.01} 10=-2",
            ],
        ),
        (
            "\\ln 1",
            "0",
            ["0=\\ln 1", "\\ln(1)=0", "\\ln{1} = 0"],
            ["\\ln 1=1", "\\ln 0=1", "\\ln e=1", "\\ln 1 = e", "0=1", "\\ln 2=0"],
        ),
        (
            "\\sqrt{49}",
            "7",
            ["7=\\sqrt{49}", "\\sqrt{49} = 7", "$\\sqrt{49}=7$"],
            [
                "\\sqrt{49}=-7",
                "\\sqrt{49}=\\pm 7",
                "\\sqrt{7}=49",
                "\\sqrt{36}=6",
                "\\sqrt{49}=24.5",
                "7=7",
            ],
        ),
        (
            "7+5",
            "12",
            ["12=7+5", "5+7=12", "7 + 5 = 12"],
            ["7+5=13", "7-5=12", "7-5=2", "7+6=13", "12=12", "75=12", "7\\cdot 5=35"],
        ),
        (
            "8\\times 9",
            "72",
            ["72=8\\times 9", "8\\cdot 9=72", "9\\times 8=72"],
            ["8\\times 9=81", "8+9=17", "8\\times 9=71", "7\\times 9=63", "8\\times 8=64", "72=72"],
        ),
        (
            "\\sin 30^\\circ",
            "\\frac{1}{2}",
            [
                "\\sin 30^{\\circ}=\\frac12",
                "\\frac{1}{2}=\\sin 30^\\circ",
                "\\sin(30^\\circ)=0.5",
                "\\sin 30^\\circ = 1/2",
            ],
            [
                "\\cos 30^\\circ=\\frac{1}{2}",
                "\\sin 60^\\circ=\\frac{1}{2}",
                "\\sin 30^\\circ=\\frac{\\sqrt3}{2}",
                "\\sin 30^\\circ=-\\frac12",
                "\\sin 30^\\circ = 2",
            ],
        ),
        (
            "e^{i\\pi}+1",
            "0",
            ["e^{\\pi i}+1=0", "0=e^{i\\pi}+1", "1+e^{i\\pi}=0"],
            [
                "e^{i\\pi}+1=1",
                "e^{i\\pi}-1=0",
                "e^{i\\pi}=1",
                "e^{\\pi}+1=0",
                "e^{2i\\pi}+1=0",
                "e^{I\\pi}+1=0",
            ],
        ),
        (
            "\\binom{5}{2}",
            "10",
            ["10=\\binom{5}{2}", "\\dbinom{5}{2}=10", "\\binom52=10"],
            [
                "\\binom{5}{2}=20",
                "\\binom{2}{5}=10",
                "\\binom{5}{2}=7",
                "\\binom{6}{2}=15",
                "10=10",
                "\\binom{5}{3}=20",
            ],
        ),
    ]
    for a, b, ri, wr in cases:
        book.add(
            KIND,
            f"{a}={b}",
            ri,
            [
                *wr,
                "0=0",
                "1=1",
                "x=x",
                f"{a}={a}",
                f"{a}\\neq {b}",
                f"{a}={b}+1",
                f"\\text{{not }} {a}={b}",
            ],
            max_wrong=13,
        )


def solved(book, n=50):
    """x = value, where the value alone is right too."""
    r = random.Random(705)
    done = 0
    while done < n:
        x = r.choice(
            ["x", "x", "y", "n", "k", "m", "t", "a", "b", "r", "\\theta", "\\lambda", "v", "N", "T"]
        )
        q = F(r.randint(-20, 60), r.choice([1, 1, 1, 2, 3, 4, 7, 9]))
        gold = r.choice(["%s=%s", "%s = %s"]) % (x, frac(q))
        fs = [f for f in forms(q, r) if "$" not in f and "\\(" not in f]
        right = (
            [(f"{x}={f}", q) for f in r.sample(fs, 3)]
            + [(f, q) for f in r.sample(fs, 2)]
            + [(frac(q), q), (f"{frac(q)} = {x}", q), (f"${x}={frac(q)}$", q)]
        )
        wrong = [(f"{x}={show(v, r)}", v) for v in near(q, r)] + [
            (show(v, r), v) for v in r.sample(near(q, r), 3)
        ]
        o = "w" if x[0] == "\\" else (x.upper() if x.islower() else x.lower())
        wrong += [
            f"{o} = {frac(q)}",
            "{} = {}".format("s" if x == "p" else "p", frac(q)),
            f"{x}={x}",
            "0=0",
            f"{x} \\neq {frac(q)}",
            f"{x} > {frac(q)}",
            f"{x}={frac(q)} \\text{{ or }} {x}={frac(q + 1)}",
            f"{x}^2 = {frac(q)}" if q else "0=1",
            f"{x}={frac(q)}, q=3",
            f"{x} + 1 = {frac(q)}",
            f"{x} = \\pm {frac(abs(q) or 1)}",
            f"not {frac(q)}",
        ]
        if not terminates(q):
            wrong += [f"{x} = {rounded(q, k)}" for k in (2, 5)]
        done += book.add(KIND, gold, right, wrong, q, r, max_wrong=12)


def functions(book, n=30):
    """f(x) = polynomial, where the right side alone is right too."""
    r = random.Random(706)
    done = 0
    while done < n:
        f, x = r.choice("ffgPhp"), r.choice("xxxtn")
        d = {
            x + "^3": F(r.choice([0, 0, 1, -2])),
            x + "^2": F(r.randint(-3, 4)),
            x: F(r.randint(-9, 9), r.choice([1, 1, 2])),
            "": F(r.randint(-12, 12)),
        }
        if sum(1 for c in d.values() if c) < 2:
            continue
        v = tuple(d.items())
        rev = list(d)[::-1]
        s = side(d)
        right = [
            f"{f}({x})={s}",
            f"{f}({x}) = {side(d, rev)}",
            s,
            side(d, rev),
            f"${s}$",
            f"{s} = {f}({x})",
            side(d, cmd="\\dfrac"),
        ]
        wrong = []
        for k in d:
            for w in (d[k] + 1, -d[k], d[k] * 2):
                e = dict(d, **{k: w})
                wrong.append((r.choice(["", f"{f}({x}) = "]) + side(e), tuple(e.items())))
        wrong = [
            *r.sample(wrong, 7),
            f"{f}({x}) = {side(scale(d, -1))}",
            f"{f}({x}) = {s} + 1",
            rename(s, {x: "u"}),
            rename(s, {x: x.upper()}),
            f"{f}({x}) \\neq {s}",
            f"{f}({x})={f}({x})",
            "0=0",
            f"{f}({x}) = 0",
            side({k: c for k, c in d.items() if k} if d[""] else dict(d, **{"": F(4)})),
        ]
        done += book.add(KIND, f"{f}({x}) = {s}", [(a, v) for a in right], wrong, v, r)


def build(book):
    for f in (lines, conics, no_real, numbers_only, solved, functions):
        f(book)
