"""An independent reading of short LaTeX answers, used to test the labels of the set: a small
recursive parser that evaluates numbers and expressions with 60 digits at fixed points."""

import re

import mpmath as mp

mp.mp.dps = 60
GREEK = {
    "alpha",
    "beta",
    "gamma",
    "delta",
    "theta",
    "lambda",
    "mu",
    "nu",
    "rho",
    "sigma",
    "omega",
    "Omega",
    "Lambda",
    "Sigma",
    "varphi",
    "varepsilon",
    "Delta",
}
FUN = {
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "cot": mp.cot,
    "sec": mp.sec,
    "csc": mp.csc,
    "ln": mp.log,
    "exp": mp.exp,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "arcsin": mp.asin,
    "arccos": mp.acos,
    "arctan": mp.atan,
}


class Unread(Exception):
    pass


def clean(s):
    s = s.strip()
    s = re.sub(r"^\\\((.*)\\\)$", r"\1", s).replace("$", "").replace("\\displaystyle", "")
    s = (
        re.sub(r"(?<=\d)(\{,\}|,\\!|\\[,;]|,(?! )| )(?=\d{3}(?!\d))", "", s)
        if re.fullmatch(r"[-+]?\s*\d{1,3}((\{,\}|,\\!\s?|\\[,;]|,| )\d{3})+(\.\d+)?", s)
        else s
    )
    s = re.sub(r"\\(left|right)(?![a-z])", "", s)
    s = re.sub(r"\\(,|;|!|:| |quad)|~", " ", s)
    s = re.sub(r"\\(d|t|c)frac", r"\\frac", s).replace("\\dbinom", "\\binom")
    s = re.sub(r"\\math(?:rm|bf)\{\s*(\w)\s*\}", r"\1", s)
    return s.replace("\\lvert", "|").replace("\\rvert", "|").strip()


class Parse:
    def __init__(self, s, env):
        self.t = re.findall(r"\d+\.\d+|\.\d+|\d+|\\[A-Za-z]+|\\.|\^|_|[A-Za-z]|\S|\s+", s)
        self.t = [x for x in self.t if x.strip()]
        self.i, self.env = 0, env

    def peek(self, k=0):
        return self.t[self.i + k] if self.i + k < len(self.t) else ""

    def next(self):
        self.i += 1
        return self.t[self.i - 1] if self.i <= len(self.t) else ""

    def need(self, x):
        if self.next() != x:
            raise Unread(x)

    def sum(self):
        v, first = mp.mpf(0), True
        while True:
            sg, seen = 1, False
            while self.peek() in ("+", "-"):
                seen = True
                sg *= -1 if self.next() == "-" else 1
            if not first and not seen:
                return v
            v, first = v + sg * self.term(), False

    def term(self):
        v = self.factor()
        while True:
            p = self.peek()
            if p in ("\\cdot", "\\times", "*"):
                self.next()
                v = v * self.factor(True)
            elif p == "/":
                self.next()
                v = v / self.factor()
            elif p and (
                (p[0] in "0123456789.({|[" and p != "|")
                or p[0].isalpha()
                or (p[0] == "\\" and p not in ("\\}", "\\pm", "\\%") and p[1:].isalpha())
            ):
                v = v * self.factor()
            else:
                return v

    def arg(self):
        if self.peek() == "{":
            return self.factor(plain=True)
        t = self.next()
        if t.isdigit() and len(t) > 1:
            self.t.insert(self.i, t[1:])
            t = t[0]
        return Parse(t, self.env).all()

    def power(self, v):
        while self.peek() in ("^", "!"):
            if self.next() == "!":
                v = mp.factorial(v)
            elif self.peek() == "\\circ" or self.t[self.i : self.i + 3] == ["{", "\\circ", "}"]:
                self.i += 1 if self.peek() == "\\circ" else 3
                v = v * mp.pi / 180
            else:
                v = v ** (self.signed_arg())
        return v

    def signed_arg(self):
        return self.arg()

    def factor(self, signed=False, plain=False):
        t = self.next()
        if signed and t == "-":
            return -self.factor()
        if re.fullmatch(r"[\d.]+", t):
            v = mp.mpf(t)
            if (
                self.peek() == "\\frac"
                and re.match(
                    r"\{\d+\}\{\d+\}$|\d\d$|\d\{\d+\}$", "".join(self.t[self.i + 1 : self.i + 7])
                )
            ) or (
                self.peek() == "\\frac"
                and re.match(r"\{\d+\}\{\d+\}", "".join(self.t[self.i + 1 : self.i + 7]))
                and t.isdigit()
            ):
                self.next()
                return v + self.arg() / self.arg()
            return self.power(v)
        if t in ("(", "{", "["):
            v = self.sum()
            self.need({"(": ")", "{": "}", "[": "]"}[t])
            return v if plain else self.power(v)
        if t == "|":
            v = abs(self.sum())
            self.need("|")
            return self.power(v)
        if t == "\\frac":
            a = self.arg()
            return self.power(a / self.arg())
        if t == "\\binom":
            a = self.arg()
            return mp.binomial(a, self.arg())
        if t == "\\sqrt":
            k = 2
            if self.peek() == "[":
                k = self.factor(plain=True)
            return self.power(mp.root(self.arg(), int(k)) if k != 2 else mp.sqrt(self.arg()))
        if t == "\\log":
            self.need("_")
            b = self.arg()
            return mp.log(self.funarg()) / mp.log(b)
        if t[1:] in FUN and t[0] == "\\":
            f, p = FUN[t[1:]], None
            if self.peek() == "^":
                self.next()
                p = self.arg()
                if p == -1:
                    return {"sin": mp.asin, "cos": mp.acos, "tan": mp.atan}[t[1:]](self.funarg())
            v = f(self.funarg())
            return v if p is None else v**p
        name = t[1:] if t[0:1] == "\\" else t
        if t == "\\pi":
            return self.power(mp.pi)
        if t == "e" and "e" not in self.env:
            return self.power(mp.e)
        if t == "i" and "i" not in self.env:
            return self.power(mp.mpc(0, 1))
        if (len(t) == 1 and t.isalpha()) or name in GREEK:
            if self.peek() == "_":
                self.next()
                name += "_" + str(self.arg())
            return self.power(value(name, self.env["k"]))
        raise Unread(t)

    def funarg(self):
        """What a function name applies to: a bracket, or the product that follows."""
        if self.peek() in ("(", "{"):
            v = self.factor(plain=True)
            return v
        v = self.factor()
        while self.peek() and (
            self.peek().isalnum() or self.peek() in ("\\pi",) or self.peek()[1:] in GREEK
        ):
            v *= self.factor()
        return v

    def all(self):
        v = self.sum()
        if self.i < len(self.t):
            raise Unread(" ".join(self.t[self.i :]))
        return v


def value(name, k):
    """The number that stands for a letter at test point k."""
    h = sum((j + 3) * ord(c) ** 2 for j, c in enumerate(name))
    return (
        mp.mpf(h * 7919 % 10007) / 10007 * 2 + mp.mpf("0.3") + mp.mpf(k) * (h * 31 % 101 + 1) / 53
    )


def number(s, k, env=()):
    if re.fullmatch(r"-?\d+ \d+/\d+", s):
        w, f = s.lstrip("-").split(" ")
        a, b = f.split("/")
        return (-1 if s[0] == "-" else 1) * (mp.mpf(w) + mp.mpf(a) / mp.mpf(b))
    return Parse(s, dict(dict.fromkeys(env, 1), k=k)).all()


def close(a, b):
    return abs(a - b) <= mp.mpf("1e-45") * (abs(a) + abs(b))


def same(g, a, strip=False):
    """True or False where both strings can be read, None elsewhere."""
    g, a = clean(g), clean(a)
    if re.search(
        r"\\text|\\neq|not|[<>;&]|\\le|\\ge|\\in|\\pm|\\infty|\\\\|_\{?\d+\}?$|\bor\b|\band\b|\\begin",
        g + a,
    ):
        return None
    try:
        if "=" in g and "=" in a and g.count("=") == a.count("=") == 1 and "," not in g + a:
            d = []
            for k in (0, 1, 2):
                (p, q), (u, w) = ([number(x, k) for x in s.split("=")] for s in (g, a))
                d.append((p - q, u - w, p, q, u, w))
            if all(abs(x[0]) < 1e-25 * (1 + abs(x[2])) for x in d):
                x = d[0]
                return (
                    (close(x[2], x[4]) and close(x[3], x[5]))
                    or (close(x[2], x[5]) and close(x[3], x[4]))
                    or None
                )
            if any(abs(x[1]) < 1e-30 for x in d):
                return False
            r = [x[0] / x[1] for x in d]
            return close(r[0], r[1]) and close(r[0], r[2])
        if ("=" in a and "," not in g + a and "=" not in g) or (
            "=" in g and "=" not in a and "," not in g + a
        ):
            g2, a2 = [x.split("=") for x in (g, a)]

            def pick(x):
                return (
                    [y for y in x if not re.fullmatch(r"\s*(\\?[A-Za-z]+|[A-Za-z]\([a-z]\))\s*", y)]
                    if len(x) > 1
                    else x
                )

            g2, a2 = pick(g2), pick(a2)
            if len(g2) != 1 or len(a2) != 1:
                return None
            g, a = g2[0].strip(), a2[0].strip()
        if "=" in g + a:
            return None
        pieces = []
        for s in (g, a):
            m = (
                re.fullmatch(r"(\\\{|\(|\\langle|)(.*?)(\\\}|\)|\\rangle|)", s)
                if "," in s
                else None
            )
            pieces.append(
                (m.group(1), m.group(2).split(",")) if m and "(" not in m.group(2) else ("", [s])
            )
        (bg, G), (ba, A) = pieces
        if len(G) == 1 and len(A) == 1:
            env = ()
            return all(close(number(g, k, env), number(a, k, env)) for k in (0, 1, 2))
        if bg in ("(", "\\langle") and bg == ba:
            return len(G) == len(A) and all(
                close(number(x.strip(), 0), number(y.strip(), 0))
                for x, y in zip(G, A, strict=False)
            )
        if bg in ("", "\\{") and ba in ("", "\\{"):
            gs, as_ = ([number(x.strip(), 0) for x in L] for L in (G, A))
            return all(any(close(x, y) for y in as_) for x in gs) and all(
                any(close(x, y) for y in gs) for x in as_
            )
    except (Unread, ValueError, ZeroDivisionError, TypeError, IndexError, KeyError, OverflowError):
        return None
    return None
