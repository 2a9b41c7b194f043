"""Shared parts of the test set generator: the collector of cases, ways to
write a rational number, and wrong answers that can be built around any number.

A case is one gold answer with answers that are right and answers that are wrong.
Generators hand over answers together with their values; the collector drops a
wrong neighbour whose value equals the gold value and refuses a right variant
whose value differs."""

import random
from fractions import Fraction as F

import sympy as sp


def same_value(a, b):
    """Exact equality of two values: containers part by part, numbers by 60 digits."""
    if isinstance(a, (tuple, list)) or isinstance(b, (tuple, list)):
        return (
            type(a) is type(b)
            and len(a) == len(b)
            and all(same_value(x, y) for x, y in zip(a, b, strict=False))
        )
    if isinstance(a, (set, frozenset)) or isinstance(b, (set, frozenset)):
        return type(a) is type(b) and a == b
    if isinstance(a, (str, bool, type(None))) or isinstance(b, (str, bool, type(None))):
        return a == b
    if isinstance(a, (int, F)) and isinstance(b, (int, F)):
        return a == b
    x, y = sp.sympify(a), sp.sympify(b)
    if x == y:
        return True
    if x.free_symbols or y.free_symbols:
        return sp.simplify(sp.together(sp.expand(x - y))) == 0
    d, m = sp.N(x - y, 60), sp.N(sp.Abs(x) + sp.Abs(y), 20)
    return bool(sp.Abs(d) <= m * sp.Float("1e-45"))


class Book:
    """Collects cases; every gold once, every (gold, answer) once."""

    def __init__(self):
        self.rows, self.golds = [], set()

    def add(self, kind, gold, right, wrong, value=None, rng=None, max_right=7, max_wrong=11):
        """Add a case. Items of right and wrong are strings, or (string, value) pairs
        that are compared with the gold's value first."""
        gold = gold.strip()
        if gold in self.golds:
            return False
        rs, ws = [], []
        for it in right:
            s, v = it if isinstance(it, tuple) else (it, value)
            assert same_value(v, value), ("right differs", kind, gold, s)
            if s != gold and s not in rs:
                rs.append(s)
        for it in wrong:
            if isinstance(it, tuple):
                if same_value(it[1], value):
                    continue
                it = it[0]
            if it not in ws:
                ws.append(it)
        bad = {squash(x) for x in [*rs, gold]}
        ws = [w for w in ws if squash(w) not in bad]
        r = rng or random.Random(gold)
        if len(rs) > max_right:
            rs = r.sample(rs, max_right)
        if len(ws) > max_wrong:
            ws = r.sample(ws, max_wrong)
        ws = [dress(w, r) if r.random() < 0.06 else w for w in ws]
        if not rs or not ws:
            return False
        self.golds.add(gold)
        self.rows.append({"kind": kind, "gold": gold, "right": rs, "wrong": ws})
        return True


def squash(s):
    """The string without spacing and delimiters, to catch look-alikes."""
    for t in ("\\,", "\\;", "\\!", "\\left", "\\right", "$", "\\(", "\\)", " "):
        s = s.replace(t, "")
    return s.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def dress(s, r):
    """The same answer with other outer typesetting."""
    return r.choice(["$%s$", "\\(%s\\)", " %s ", "$ %s $", "$\\displaystyle %s$"]) % s


def sign(q):
    return "-" if q < 0 else ""


def frac(q, cmd="\\frac"):
    """A rational as integer or fraction command."""
    q = F(q)
    if q.denominator == 1:
        return str(q.numerator)
    return "%s%s{%d}{%d}" % (sign(q), cmd, abs(q.numerator), q.denominator)


def terminates(q):
    d = F(q).denominator
    for p in (2, 5):
        while d % p == 0:
            d //= p
    return d == 1


def decimal(q, lead=True):
    """The terminating decimal of q, exactly."""
    q = F(q)
    assert terminates(q)
    k = 0
    while (abs(q) * 10**k).denominator != 1:
        k += 1
    n = str(int(abs(q) * 10**k)).rjust(k + 1, "0")
    body = n if k == 0 else n[:-k] + "." + n[-k:]
    if not lead and body.startswith("0."):
        body = body[1:]
    return sign(q) + body


def rounded(q, k):
    """q rounded to k decimals, written with exactly k decimals."""
    n = abs(F(q)) * 10**k
    m = int(n + F(1, 2))
    t = str(m).rjust(k + 1, "0")
    return sign(q) + (t if k == 0 else t[:-k] + "." + t[-k:])


def grouped(n, sep):
    return format(n, ",").replace(",", sep)


def mixed(q, cmd="\\frac"):
    q = F(q)
    w, rest = divmod(abs(q), 1)
    return "%s%d%s{%d}{%d}" % (sign(q), w, cmd, rest.numerator, rest.denominator)


def forms(q, r):
    """Many ways to write the rational q."""
    q = F(q)
    a, b = abs(q.numerator), q.denominator
    s = sign(q)
    if b == 1:
        out = ["%d.0" % q, "%d.00" % q, "$%d$" % q, "\\(%d\\)" % q, "{%d}" % q]
        if q > 0:
            out.append("+%d" % q)
        if a >= 1000:
            out += [grouped(int(q), x) for x in (",", "{,}", "\\,", "\\;", " ", ",\\!")] * 2
        return out
    k = r.choice([2, 3, 5, 10])
    out = ["%s%s{%d}{%d}" % (s, c, a, b) for c in ("\\frac", "\\dfrac", "\\tfrac")]
    out += [
        "%s%d/%d" % (s, a, b),
        "%s\\frac{%d}{%d}" % (s, k * a, k * b),
        "$%s\\frac{%d}{%d}$" % (s, a, b),
        "\\(%s\\dfrac{%d}{%d}\\)" % (s, a, b),
        "%s\\frac { %d } { %d }" % (s, a, b),
    ]
    if a < 10 and b < 10:
        out += ["%s\\frac%d%d" % (s, a, b), "%s\\frac %d%d" % (s, a, b)]
    if q < 0:
        out += ["\\frac{-%d}{%d}" % (a, b), "\\frac{%d}{-%d}" % (a, b), "-%d / %d" % (a, b)]
    if terminates(q):
        out += [decimal(q), decimal(q) + "0"]
        if a < b:
            out.append(decimal(q, lead=False))
    if a > b:
        out += [mixed(q), mixed(q, "\\dfrac"), mixed(q).replace("\\frac", "\\,\\frac")]
        w, rest = divmod(a, b)
        out.append("%s%d %d/%d" % (s, w, rest, b))
    return out


def near(q, r):
    """Rationals near to q in the ways that answers go wrong (some may equal q)."""
    q = F(q)
    a, b = q.numerator, q.denominator
    out = [-q, q + 1, q - 1, q * 10, q * 2, q / 2, q + 10, q * q, 2 - q]
    if b == 1:
        t = str(abs(a))
        if len(t) > 1:
            out += [
                F(sign(q) + t[::-1]),
                F(sign(q) + t[:-1]),
                F(sign(q) + t[0] + t),
                F(sign(q) + t[1:]),
            ]
            i = r.randrange(len(t))
            out.append(F(sign(q) + t[:i] + str((int(t[i]) + r.randint(1, 8)) % 10) + t[i + 1 :]))
        if abs(a) > 1:
            out += [F(1, a), q / 10]
    else:
        out += [
            1 / q,
            F(a + 1, b),
            F(a - 1, b),
            F(a, b + 1),
            F(b - a, b),
            q / 10,
            F(a),
            F(b),
            F(a, 10 * b),
        ]
        if b > 2:
            out.append(F(a, b - 1))
    return out


def show(q, r):
    """One usual spelling of q."""
    q = F(q)
    if q.denominator == 1:
        return str(q.numerator)
    return r.choice([frac(q), frac(q), frac(q, "\\dfrac"), "%d/%d" % (q.numerator, q.denominator)])


def hedges(s, t, r):
    """Wrong answers built around a right number s and another number t."""
    return [
        f"{s} \\text{{ or }} {t}",
        f"{s}, {t}",
        f"{s} or {t}",
        f"{t}, {s}",
        f"\\neq {s}",
        f"x \\neq {s}",
        f"not {s}",
        f"\\text{{not }} {s}",
        "\\pm {}".format(s.lstrip("-")),
        f"{s} \\text{{ and }} {t}",
        f"\\{{{s}, {t}\\}}",
        f"x > {s}",
        f"x \\le {s}",
        f"{s} + x",
        f"{s} + C",
        f"\\text{{more than }} {s}",
        f"\\text{{at least }} {s}",
        f"\\text{{either }} {s} \\text{{ or }} {t}",
        f"x = {s} \\text{{ or }} x = {t}",
        f"x = {s}, y = {t}",
        f"({s}, {t})",
        f"[{s}, {t}]",
        f"{s}; {t}",
        f"{s} \\text{{ to }} {t}",
        f"\\text{{between }} {s} \\text{{ and }} {t}",
        f"< {s}",
        "0=0",
        "x=x",
        "1=1",
        f"\\text{{any number except }} {s}",
        f"{t} \\text{{ and not }} {s}",
        "(-\\infty, \\infty)",
        "\\text{none}",
        "\\text{undefined}",
        "\\infty",
        "\\emptyset",
        "",
    ]
