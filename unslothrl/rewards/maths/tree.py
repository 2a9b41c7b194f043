"""Expressions as trees, and the parser that makes them.

A tree is a tuple: ("number", Fraction), ("symbol", name), ("add", *terms), ("mul", *factors),
("pow", base, exponent) or ("call", name, *arguments). Terms and factors are sorted, nothing is
computed: equal trees are the same formula, written down in any order.
"""

from collections.abc import Sequence
from fractions import Fraction

from unslothrl.rewards.maths.latex import FUNCTIONS, Token, Unreadable, words

Tree = tuple
MAX_DEPTH = 50
MAX_EXPONENT = 100_000  # of "1e9"

MINUS_ONE: Tree = ("number", Fraction(-1))
MATRICES = {"pmatrix", "bmatrix", "matrix", "array", "smallmatrix", "Bmatrix"}
GREEK_LETTERS = set(
    words(
        """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma
        tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi
        Psi Omega vartheta varsigma varrho ell hbar aleph imath jmath partial nabla Re Im"""
    )
)
_NAMING = {"vec", "hat", "bar", "overline", "tilde", "dot", "ddot", "widehat", "overrightarrow",
           "overleftarrow", "overarc", "widetilde", "overset"}  # fmt: skip
_LARGE = {"sum", "prod", "int", "lim", "iint", "iiint", "oint", "sup", "inf", "bigoplus"}
_SYMMETRIC = {"gcd", "lcm", "max", "min"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def number(value: int | Fraction) -> Tree:
    return ("number", Fraction(value))


def add(*terms: Tree) -> Tree:
    flat = [part for one in terms for part in (one[1:] if one[0] == "add" else (one,))]
    return flat[0] if len(flat) == 1 else ("add", *sorted(flat, key=repr))


def mul(*factors: Tree) -> Tree:
    flat = [part for one in factors for part in (one[1:] if one[0] == "mul" else (one,))]
    return flat[0] if len(flat) == 1 else ("mul", *sorted(flat, key=repr))


def negative(tree: Tree) -> Tree:
    if tree[0] == "number":
        return ("number", -tree[1])
    if tree[0] == "mul" and MINUS_ONE in tree[1:]:
        rest = list(tree[1:])
        rest.remove(MINUS_ONE)
        return mul(*rest)
    return mul(MINUS_ONE, tree)


def divided(a: Tree, b: Tree) -> Tree:
    return mul(a, ("pow", b, MINUS_ONE))


def symbols(tree: Tree) -> frozenset[str]:
    if tree[0] == "symbol":
        return frozenset((tree[1],))
    return frozenset().union(*(symbols(one) for one in tree[1:] if isinstance(one, tuple)))


def calls(tree: Tree, name: str) -> bool:
    """Whether a function of this name is called anywhere in the tree."""
    if tree[0] == "call" and tree[1] == name:
        return True
    return any(calls(one, name) for one in tree[1:] if isinstance(one, tuple))


def exact(text: str) -> Fraction:
    """ "1.5e3" as it stands."""
    _, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise Unreadable("exponent")
    return Fraction(text)


class Parser:
    """Reads one expression from tokens. `plus_minus` is the sign that `\\pm` stands for."""

    def __init__(self, found: Sequence[Token], plus_minus: int = 1):
        self.tokens, self.at, self.depth = found, 0, 0
        self.plus_minus = plus_minus
        self.bars = 0  # `|` that wait for their partner

    def whole(self) -> Tree:
        tree = self.expression()
        if self.at != len(self.tokens):
            raise Unreadable(f"unexpected {self.tokens[self.at].value}")
        return tree

    def peek(self, ahead: int = 0) -> Token | None:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else None

    def sign(self, ahead: int = 0) -> str:
        """The sign that comes next, "" where none does; commands have no sign."""
        token = self.peek(ahead)
        return token.value if token is not None and token.kind == "sign" else ""

    def command(self, ahead: int = 0) -> str:
        token = self.peek(ahead)
        return token.value if token is not None and token.kind == "command" else ""

    def take(self, *values: str) -> bool:
        """Goes on where the next sign or command is one of these."""
        token = self.peek()
        if token is None or token.kind not in ("sign", "command") or token.value not in values:
            return False
        self.at += 1
        return True

    def expect(self, value: str) -> None:
        if not self.take(value):
            raise Unreadable(f"{value} is missing")

    def expression(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too deep")
        terms = [self.signed_term()]
        while self.sign() in ("+", "-") or self.command() in ("pm", "mp"):
            terms.append(self.signed_term())
        self.depth -= 1
        return add(*terms)

    def signed_term(self) -> Tree:
        minus = alternates = False
        while True:
            if self.take("-"):
                minus = not minus
            elif self.command() in ("pm", "mp"):
                if alternates:
                    raise Unreadable("two alternative signs")
                alternates = True
                minus ^= (self.plus_minus < 0) == (self.command() == "pm")
                self.at += 1
            elif not self.take("+"):
                break
        tree = self.term()
        return negative(tree) if minus else tree

    def term(self) -> Tree:
        tree = self.mixed_or_factor()
        while self.peek() is not None:
            if self.take("*", "cdot", "times", "bullet"):
                tree = mul(tree, self.signed_factor())
            elif self.take("/", "div"):
                tree = divided(tree, self.signed_factor())
            elif self.begins_factor():
                before, after = self.tokens[self.at - 1], self.tokens[self.at]
                if before.kind == after.kind == "number" or self.begins_loose_group():
                    raise Unreadable("two numbers side by side")
                tree = mul(tree, self.factor())
            else:
                break
        return tree

    def signed_factor(self) -> Tree:
        if self.take("-"):
            return negative(self.signed_factor())
        self.take("+")
        return self.factor()

    def begins_loose_group(self) -> bool:
        """Whether braces follow that show as more digits or as a sum: "5{6}", "5{+1}"."""
        following = self.peek(1)
        return self.sign() == "{" and (
            following is None or following.kind == "number" or following.value in "+-"
        )

    def begins_factor(self) -> bool:
        token = self.peek()
        if token is None or token.kind == "text":
            return False
        if token.kind == "sign":
            return token.value in "([{" or (token.value == "|" and not self.bars)
        if token.kind == "command":
            return self.is_operand(token.value)
        return True

    @staticmethod
    def is_operand(command: str) -> bool:
        if command.startswith("begin "):
            return True
        return (
            command in FUNCTIONS | GREEK_LETTERS | _NAMING | _LARGE
            or command in ("frac", "sqrt", "cbrt", "binom", "lfloor", "lceil", "infty", "angle")
            or command in ("triangle", "mathbb", "Vert")
        )

    def mixed_number(self) -> Tree | None:
        """ "3\\frac{1}{2}" and "3 1/2": a proper fraction right after a whole number."""
        values = [token.value for token in self.tokens[self.at : self.at + 8]]
        kinds = [token.kind for token in self.tokens[self.at : self.at + 8]]
        if kinds[:1] != ["number"] or not values[0].isdecimal():
            return None
        plain = kinds[1:4] == ["number", "sign", "number"] and values[2] == "/"
        if plain and self.tokens[self.at + 1].spaced:
            top, bottom, length = values[1], values[3], 4
        elif kinds[1:2] == ["command"] and values[1] == "frac":
            parser = Parser(self.tokens[self.at + 2 :])
            try:
                first, second = parser.argument(), parser.argument()
            except Unreadable:
                return None
            if first[0] != "number" or second[0] != "number":
                return None
            top, bottom, length = str(first[1]), str(second[1]), 2 + parser.at
        else:
            return None
        if not (top.isdecimal() and bottom.isdecimal() and 0 < int(top) < int(bottom)):
            return None
        after = self.peek(length)
        if after is not None and (after.value in ("^", "!") or after.kind == "number"):
            beyond = [one.value for one in self.tokens[self.at + length + 1 :][:2]]
            if beyond[:1] != ["circ"] and beyond != ["{", "circ"]:
                return None
        self.at += length
        return number(int(values[0]) + Fraction(int(top), int(bottom)))

    def factor(self) -> Tree:
        return self.followed(self.atom())

    def mixed_or_factor(self) -> Tree:
        mixed = self.mixed_number()
        return self.factor() if mixed is None else self.followed(mixed)

    def followed(self, tree: Tree) -> Tree:
        """With the powers, factorials and signs after it."""
        while True:
            if self.sign() == "^":
                self.at += 1
                tree = self.raised(tree)
            elif self.sign() == "!":
                self.at += 1
                double = self.take("!")
                if self.sign() == "!":
                    raise Unreadable("three factorial signs")
                tree = ("call", "double factorial" if double else "factorial", tree)
            elif self.take("%"):
                tree = ("call", "percent", tree)
            elif self.command() == "circ" and tree[0] == "number":
                self.at += 1
                tree = ("call", "degree", tree)
            elif self.sign() == "'":
                raise Unreadable("prime")
            else:
                return tree

    def raised(self, base: Tree) -> Tree:
        if self.take("circ"):
            return ("call", "degree", base)
        if self.sign() == "{" and self.command(1) == "circ" and self.sign(2) == "}":
            self.at += 3
            return ("call", "degree", base)
        return ("pow", base, self.script())

    def script(self) -> Tree:
        """What follows `^`: a group, a number with its sign, or one atom."""
        if self.take("-"):
            return negative(self.script())
        self.take("+")
        if self.sign() == "(":
            return self.atom()
        tree = self.atom()
        if self.sign() == "^":  # 2^3^2, as plain text has it
            self.at += 1
            return ("pow", tree, self.script())
        return tree

    def argument(self) -> Tree:
        """What `\\frac` takes: a group or a single digit, letter or command."""
        token = self.peek()
        if token is not None and token.kind == "number" and len(token.value) > 1:
            rest = Token("number", token.value[1:], False)
            self.tokens = [*self.tokens[: self.at], rest, *self.tokens[self.at + 1 :]]
            return number(int(token.value[0])) if token.value[0].isdecimal() else self.fail(token)
        return self.atom()

    def fail(self, token: Token | None) -> Tree:
        raise Unreadable(f"unexpected {token.value if token else 'end'}")

    def atom(self) -> Tree:
        token = self.peek()
        if token is None or token.kind == "text":
            return self.fail(token)
        self.at += 1
        if token.kind == "number":
            return self.decimal(token)
        if token.kind == "letter":
            return self.letter(token)
        if token.kind == "command":
            return self.named(token.value)
        if token.value in "([{":
            tree = self.expression()
            self.expect(_CLOSING[token.value])
            return tree
        if token.value == "|" and self.bars < 3:
            self.bars += 1
            tree = self.expression()
            self.expect("|")
            self.bars -= 1
            return ("call", "abs", tree)
        return self.fail(token)

    def decimal(self, token: Token) -> Tree:
        if "." in token.value and self.command() in ("overline", "bar", "dot"):
            self.at += 1
            digits = self.digits()
            places = len(token.value.partition(".")[2])
            repeated = Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
            return number(Fraction(token.value + "0") + repeated)
        if token.value.endswith(".") and self.begins_factor():
            return self.fail(token)
        return number(exact(token.value))

    def digits(self) -> str:
        braces = self.take("{")
        token = self.peek()
        if token is None or token.kind != "number" or not token.value.isdecimal():
            return self.fail(token)[0]
        self.at += 1
        if braces:
            self.expect("}")
        return token.value

    def letter(self, token: Token) -> Tree:
        if token.value == "m" and self.command() == "angle":
            return self.atom()  # the measure of an angle
        name = token.value + self.subscript()
        primes = ""
        while self.take("'"):
            primes += "'"
        name += primes
        if self.sign() == "(" and (token.value in "fgh" or primes):
            return self.applied(name)
        inverse = [one.value for one in self.tokens[self.at : self.at + 6]]
        if token.value in "fgh" and inverse == ["^", "{", "-", "1", "}", "("]:
            self.at += 5
            return self.applied(name + "^-1")
        return ("symbol", name)

    def applied(self, name: str) -> Tree:
        self.expect("(")
        arguments = [self.expression()]
        while self.take(","):
            arguments.append(self.expression())
        self.expect(")")
        return ("call", "of " + name, *arguments)

    def subscript(self) -> str:
        if self.sign() != "_":
            return ""
        self.at += 1
        return "_" + self.written()

    def written(self) -> str:
        """The next group or token as text."""
        if not self.take("{"):
            token = self.peek()
            if token is None:
                return self.fail(token)[0]
            self.at += 1
            return token.value
        depth = 1
        parts: list[str] = []
        while True:
            token = self.peek()
            if token is None:
                return self.fail(token)[0]
            self.at += 1
            depth += {"{": 1, "}": -1}.get(token.value, 0) if token.kind == "sign" else 0
            if depth == 0:
                return "".join(parts)
            parts.append(token.value)

    def named(self, name: str) -> Tree:
        if name in GREEK_LETTERS:
            return ("symbol", "\\" + name + self.subscript() + "'" * self.primes())
        if name in FUNCTIONS:
            return self.function(name)
        if name == "frac":
            derivative = self.derivative()
            if derivative is not None:
                return derivative
            top = self.argument()
            return divided(top, self.argument())
        if name in ("sqrt", "cbrt"):
            return self.root(3 if name == "cbrt" else 2)
        if name == "binom":
            top = self.argument()
            return ("call", "binomial", top, self.argument())
        if name in ("lfloor", "lceil"):
            inside = self.expression()
            if self.take("rfloor" if name == "lfloor" else "rceil"):
                return ("call", name[1:], inside)
            raise Unreadable("floor that does not close")
        if name == "Vert":
            inside = self.expression()
            self.expect("Vert")
            return ("call", "norm", inside)
        if name in _LARGE:
            return self.large(name)
        if name in _NAMING | {"angle", "triangle", "mathbb"}:
            return ("symbol", name + " " + self.name_of())
        if name.startswith("begin ") and name[6:] == "vmatrix":
            return ("call", "det", *self.rows("vmatrix"))
        return self.fail(Token("command", name, False))

    def derivative(self) -> Tree | None:
        """The symbol that "\\frac{dy}{dx}" is; its d cannot be cancelled."""
        values = [one.value for one in self.tokens[self.at : self.at + 8]]
        if [*values[:2], *values[3:6], *values[7:]] != ["{", "d", "}", "{", "d", "}"]:
            return None
        if not (values[2].isalpha() and values[6].isalpha()):
            return None
        self.at += 8
        return ("symbol", f"d{values[2]}/d{values[6]}")

    def primes(self) -> int:
        count = 0
        while self.take("'"):
            count += 1
        return count

    def name_of(self) -> str:
        """ "{AB}" or "ABC" after `\\vec`, `\\angle`."""
        if self.sign() == "{":
            return self.written()
        parts = ""
        while (token := self.peek()) is not None and token.kind == "letter":
            parts += token.value
            self.at += 1
        return parts or self.written()

    def root(self, degree: int) -> Tree:
        index: Tree = number(degree)
        if self.sign() == "[":
            self.at += 1
            index = self.expression()
            self.expect("]")
        return ("pow", self.argument(), ("pow", index, MINUS_ONE))

    def function(self, name: str) -> Tree:
        base: Tree | None = None
        power: Tree | None = None
        while self.sign() in ("_", "^"):
            if self.take("_"):
                base = self.atom()
            else:
                self.at += 1
                power = self.script()
        inside = self.function_arguments()
        if base is not None and name not in ("log", "lg"):
            raise Unreadable("subscript of a function")
        inverse = power == MINUS_ONE and name in ("sin", "cos", "tan", "cot", "sec", "csc")
        name = "arc" + name if inverse else name.replace("arsin", "arcsin")
        inside = sorted(inside, key=repr) if name in _SYMMETRIC else inside
        name = {"arcosh": "arccosh", "artanh": "arctanh", "lg": "log"}.get(name, name)
        if name == "exp":
            tree: Tree = ("pow", ("symbol", "e"), *inside)
        else:
            tree = ("call", name, *inside) if base is None else ("call", name, *inside, base)
        return tree if power is None or inverse else ("pow", tree, power)

    def function_arguments(self) -> list[Tree]:
        """In brackets, or the product that follows: "\\sin 2x \\cos x" is sin(2x) cos(x)."""
        for opening, closing in (("(", ")"), ("lset", "rset")):
            if self.take(opening):
                arguments = [self.expression()]
                while self.take(","):
                    arguments.append(self.expression())
                self.expect(closing)
                return arguments
        if self.take("-"):
            return [negative(self.function_arguments()[0])]
        factors = [self.mixed_or_factor()]
        while self.begins_factor() and self.command() not in FUNCTIONS | _LARGE:
            if self.sign() in ("(", "[", "|") and factors[-1][0] != "number":
                break
            if self.tokens[self.at - 1].kind == "number" == self.tokens[self.at].kind:
                break
            factors.append(self.factor())
        return [mul(*factors)]

    def large(self, name: str) -> Tree:
        """A sum, product, integral or limit: compared as it is written."""
        bounds: dict[str, str] = {"_": "", "^": ""}
        while self.sign() in ("_", "^"):
            where = self.sign()
            self.at += 1
            bounds[where] = self.written()
        body = self.term()
        return ("call", f"{name} {bounds['_']} {bounds['^']}", body)

    def rows(self, name: str) -> list[Tree]:
        """The rows of `\\begin{name}`, up to `\\end{name}`."""
        rows: list[list[Tree]] = [[]]
        while not self.take(f"end {name}"):
            if self.take("\\"):
                rows.append([])
            elif not self.take("&"):
                rows[-1].append(self.expression())
        return [("row", *row) for row in rows if row]


def expressions(found: Sequence[Token]) -> list[Tree]:
    """One tree; two where `\\pm` or `\\mp` stands in it."""
    if any(token.kind == "command" and token.value in ("pm", "mp") for token in found):
        return [Parser(found, +1).whole(), Parser(found, -1).whole()]
    return [Parser(found).whole()]
