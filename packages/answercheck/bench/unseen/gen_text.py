"""Cases whose gold is a word, a name, a short phrase, or the letter of a choice."""

import random

KIND = "text and multiple choice"
GROUPS = [
    ["even", "odd", "neither"],
    ["increasing", "decreasing", "constant"],
    ["ellipse", "circle", "parabola", "hyperbola", "line"],
    ["yes", "no", "maybe"],
    ["true", "false", "undecidable"],
    ["rational", "irrational", "imaginary"],
    ["Evelyn", "Carla", "Debra", "Angela"],
    ["Navin", "Peter", "Sharon", "Luis"],
    ["east", "west", "north", "south"],
    ["Monday", "Tuesday", "Friday", "Sunday"],
    ["red", "blue", "green", "yellow"],
    ["acute", "obtuse", "right"],
    ["convergent", "divergent", "oscillating"],
    ["maximum", "minimum", "saddle point"],
    ["continuous", "discontinuous", "undefined"],
    ["Alice", "Bob", "Carol"],
    ["rhombus", "square", "rectangle", "trapezoid"],
    ["oxygen", "hydrogen", "nitrogen"],
    ["January", "March", "August"],
    ["stable", "unstable", "neutral"],
    ["isosceles", "scalene", "equilateral"],
    ["clockwise", "counterclockwise", "stationary"],
    ["heads", "tails", "edge"],
    ["reflexive", "symmetric", "transitive"],
    ["injective", "surjective", "bijective"],
    ["plane", "sphere", "cone", "cylinder"],
]
PHRASES = [
    ("two circles", ["two lines", "one circle", "three circles", "circles"]),
    ("a right triangle", ["an acute triangle", "a right angle", "an obtuse triangle"]),
    ("the first player", ["the second player", "neither player", "the third player"]),
    ("all of the above", ["none of the above", "some of the above", "any of the above"]),
    ("diverges to infinity", ["converges to zero", "diverges to zero", "converges to one"]),
    ("prime number", ["composite number", "perfect number", "number"]),
    ("linearly independent", ["linearly dependent", "dependent", "orthogonal"]),
    ("even function", ["odd function", "function", "constant function"]),
    ("local maximum", ["local minimum", "saddle point", "global minimum"]),
    ("point B", ["point A", "point C", "line B"]),
]


def spell(w):
    """Ways to typeset the word w."""
    out = [
        f"\\text{{{w}}}",
        w,
        f"\\textbf{{{w}}}",
        f"\\mathrm{{{w}}}" if " " not in w else f"\\text{{ {w} }}",
        f"\\text{{ {w}}}",
        f"$\\text{{{w}}}$",
        f" {w} ",
    ]
    out += (
        [
            f"\\text{{{w.capitalize()}}}",
            w.capitalize(),
            w.lower(),
            f"\\text{{{w.upper()}}}",
            f"\\text{{{w.lower()}}}",
        ]
        if w[-2:] != " B"
        else []
    )
    return out


def words(book):
    """Words of a closed group, with the others of the group and negations as wrong answers."""
    r = random.Random(1001)
    for g in GROUPS:
        for w in g[:3]:
            others = [o for o in g if o != w]
            o = others[0]

            def ru(s):
                return r.choice([f"\\text{{{s}}}", s, s.capitalize(), f"\\textbf{{{s}}}"])

            wrong = [ru(x) for x in others] + [
                ru("not " + w),
                ru(f"{w} or {o}"),
                ru(f"{w} and {o}"),
                ru(f"neither {w} nor {o}"),
                ru(f"{o}, not {w}"),
                ru("it is not " + w),
                ru("never " + w),
                ru("anything but " + w),
                ru(f"both {o} and {w}"),
                ru("non-" + w),
                f"{w}, {o}",
                ru(f"{o}, {w}"),
                f"\\neq \\text{{{w}}}",
                f"\\text{{not }}\\text{{{w}}}",
                "7",
                ru(f"{w} if and only if {o}"),
                "",
            ]
            book.add(
                KIND,
                r.choice(
                    [
                        f"\\text{{{w}}}",
                        f"\\text{{{w}}}",
                        w,
                        f"\\text{{{w.capitalize()}}}",
                        f"\\textbf{{{w}}}",
                    ]
                ),
                spell(w),
                wrong,
                max_wrong=12,
            )
    for w, others in PHRASES:
        wrong = (
            [f"\\text{{{x}}}" for x in others]
            + others[:1]
            + [
                f"\\text{{not {w}}}",
                f"\\text{{{w} or {others[0]}}}",
                f"{w}, {others[0]}",
                f"\\text{{neither {w} nor {others[0]}}}",
                f"\\neq \\text{{{w}}}",
                f"\\text{{it is not {w}}}",
                f"\\text{{never {w}}}",
                "0",
            ]
        )
        book.add(KIND, f"\\text{{{w}}}", spell(w), wrong, max_wrong=12)


def choices(book):
    """Letters A to E in several gold spellings, and several letters."""
    for c in "ABCDE":
        o = [x for x in "ABCDE" if x != c]
        good = [
            c,
            f"({c})",
            f"\\text{{({c})}}",
            f"\\text{{{c}}}",
            f"\\textbf{{({c})}}",
            f"\\mathrm{{({c})}}",
            f"\\textbf{{{c}}}",
            f"\\mathrm{{{c}}}",
            f"$\\text{{({c})}}$",
            f"\\text{{ ({c})}}",
            f"( {c} )",
            f"\\left(\\text{{{c}}}\\right)",
        ]
        wrong = (
            [f"\\text{{({x})}}" for x in o]
            + [o[0], o[1], f"({o[2]})", f"\\textbf{{({o[3]})}}"]
            + [
                f"{c} or {o[0]}",
                f"{c}, {o[1]}",
                f"\\text{{not }} {c}",
                f"not {c}",
                c + o[0],
                o[1] + c,
                f"({c}), ({o[2]})",
                f"\\text{{{c} and {o[3]}}}",
                f"\\text{{{c}}} \\text{{ or }} \\text{{{o[0]}}}",
                f"\\text{{anything but {c}}}",
                f"\\text{{not ({c})}}",
                f"\\neq {c}",
                "ABCDE",
                "\\text{(A), (B), (C), (D), (E)}",
                f"\\text{{neither {c} nor {o[0]}}}",
                f"\\text{{({c}) or ({o[3]})}}",
                f"\\text{{either {o[2]} or {c}}}",
                f"\\text{{all except {c}}}",
                "\\text{none of the above}",
                "\\text{F}",
                f"({c}{o[0]})",
                "",
            ]
        )
        for g in [f"\\text{{({c})}}", c, f"\\textbf{{({c})}}", f"\\text{{{c}}}"]:
            book.add(KIND, g, good, wrong, max_right=7, max_wrong=13)
    for a in ["AB", "AC", "BD", "ACD", "BCD", "AE"]:
        s = ", ".join(a)
        rest = [x for x in "ABCDE" if x not in a]
        book.add(
            KIND,
            s,
            [
                ", ".join(a[::-1]),
                ",".join(a),
                f"\\text{{{s}}}",
                f"${s}$",
                "\\text{{{}}}".format(",".join(a)),
            ],
            [
                a[0],
                a[-1],
                s + ", " + rest[0],
                ", ".join(a[:-1] + rest[0]),
                ", ".join(rest),
                "\\text{not } " + s,
                f"\\text{{{a[0]} or {rest[0]}}}",
                "A, B, C, D, E",
                ", ".join(rest[0] + a[1:]),
                "\\text{none}",
            ],
        )


def build(book):
    words(book)
    choices(book)
