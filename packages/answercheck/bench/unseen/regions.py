"""Reading of intervals, unions, conditions on one letter, matrices, and named parts, on top of
reader.py; a region is compared by its end points and whether they belong to it."""

import re

import mpmath as mp

from unseen.reader import Unread, clean, close, number
from unseen.reader import same as same_number

OPS = {
    "<": 0,
    "\\lt": 0,
    "\\le": 1,
    "\\leq": 1,
    "\\leqslant": 1,
    "≤": 1,
    ">": 2,
    "\\gt": 2,
    "\\ge": 3,
    "\\geq": 3,
    "\\geqslant": 3,
    "≥": 3,
}


def end(s):
    s = s.replace(" ", "")
    if s in ("\\infty", "+\\infty"):
        return mp.inf
    return -mp.inf if s == "-\\infty" else number(s, 0)


def condition(s):
    """(letter, lower end, closed, upper end, closed) of a chain of comparisons."""
    t = [
        x.strip()
        for x in re.split(
            r"(<|>|≤|≥|\\l[te](?:q|qslant)?(?![a-z])|\\g[te](?:q|qslant)?(?![a-z]))", s
        )
    ]
    if len(t) == 3:
        (a, op, b) = t
        k = OPS[op]
        if not re.fullmatch("[A-Za-z]", a):
            if not re.fullmatch("[A-Za-z]", b):
                raise Unread(s)
            a, b, k = b, a, (k + 2) % 4
        return (a, -mp.inf, False, end(b), k == 1) if k < 2 else (a, end(b), k == 3, mp.inf, False)
    if len(t) == 5 and re.fullmatch("[A-Za-z]", t[2]) and OPS[t[1]] // 2 == OPS[t[3]] // 2:
        k, m = OPS[t[1]], OPS[t[3]]
        if k < 2:
            return (t[2], end(t[0]), k == 1, end(t[4]), m == 1)
        return (t[2], end(t[4]), m == 3, end(t[0]), k == 3)
    raise Unread(s)


def region(s):
    """A sorted list of intervals and the letter (None for bare brackets)."""
    s = clean(s)
    name, out = None, []
    m = re.match(r"([A-Za-z])\s*\\in(?![a-z])\s*", s)
    if m:
        name, s = m.group(1), s[m.end() :]
    m = re.fullmatch(r"([a-z]) \\neq? (.*)", s)
    if m:
        v = end(m.group(2))
        return m.group(1), [(-mp.inf, False, v, False), (v, False, mp.inf, False)]
    if s == "\\mathbb{R}":
        return name, [(-mp.inf, False, mp.inf, False)]
    for p in re.split(r"\\cup|\\text\{ or \}|\bor\b", s):
        p = p.strip()
        if re.search(r"[<>≤≥]|\\[lg][te]", p):
            x, a, c, b, d = condition(p)
            name = x
        else:
            if p[:1] not in "([" or p[-1:] not in ")]" or p.count(",") != 1:
                raise Unread(s)
            a, b = (end(x) for x in p[1:-1].split(","))
            c, d = p[0] == "[", p[-1] == "]"
        if b < a:
            return name, "reversed"
        out.append((a, c, b, d))
    out.sort()
    i = 0
    while i + 1 < len(out):
        p, q = out[i], out[i + 1]
        if q[0] < p[2] or (q[0] == p[2] and (q[1] or p[3])):
            hi = max((p[2], p[3]), (q[2], q[3]))
            out[i : i + 2] = [(p[0], p[1] or (q[0] == p[0] and q[1]), *hi)]
        else:
            i += 1
    return name, out


def matrix(s):
    m = re.fullmatch(
        r"(?:[\(\[])?\\begin\{(?:[pb]?matrix|array)\}(?:\{[clr]+\})?(.*?)\\end\{\w+\}(?:[\)\]])?",
        clean(s.replace("\\\\", "@")).strip(),
    )
    if not m:
        raise Unread(s)
    return [
        [number(x.strip(), 0) for x in row.split("&")]
        for row in re.split(r"@(?:\[4pt\])?", m.group(1))
    ]


def named(s):
    """Named parts as a dictionary."""
    s = re.sub(r"\\text\{ and \}|\band\b", ",", clean(s)).replace(",,", ",")
    out = {}
    for p in re.split(r",", s):
        if not p.strip():
            continue
        a, b = p.split("=")
        if a.strip() in out:
            raise Unread(s)
        out[a.strip()] = number(b.strip(), 0)
    return out


def equal(a, b):
    return a == b or (mp.isfinite(a) and mp.isfinite(b) and close(a, b))


def same(g, a):
    """True or False where both can be read, None elsewhere."""
    errors = (Unread, ValueError, ZeroDivisionError, TypeError, IndexError, KeyError)
    if "not" in a:
        return None
    if "\\begin" in g:
        try:
            m, n = matrix(g), matrix(a)
        except errors:
            return None
        return [len(r) for r in m] == [len(r) for r in n] and all(
            close(x, y) for r, t in zip(m, n, strict=False) for x, y in zip(r, t, strict=False)
        )
    if g.count("=") > 1:
        try:
            m, n = named(g), named(a)
        except errors:
            return None
        return (
            m.keys() == n.keys() and all(close(m[k], n[k]) for k in m)
            if len({x.split("=")[0].strip() for x in g.split(",")}) > 1
            else None
        )
    if (
        re.search(r"\\in(?![a-z])|\\cup|<|>|\\[lg]eq?(?![a-z])|[\[\]]|\\neq|\\infty", g)
        and "\\sqrt[" not in g
    ):
        try:
            (x, m), (y, n) = region(g), region(a)
        except errors:
            return None
        if "reversed" in (m, n):
            return False
        if x and y and x != y:
            return False
        return len(m) == len(n) and all(
            equal(p[0], q[0]) and equal(p[2], q[2]) and p[1] == q[1] and p[3] == q[3]
            for p, q in zip(m, n, strict=False)
        )
    return same_number(g, a)
