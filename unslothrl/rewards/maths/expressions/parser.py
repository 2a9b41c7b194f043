"""The parser of expressions: arithmetic, and the commands of LaTeX with their arguments."""

from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.expressions.arithmetic import Arithmetic
from unslothrl.rewards.maths.expressions.tree import MINUS_ONE, Tree, divided, mul, negative, number
from unslothrl.rewards.maths.notation.tokens import Token, Tokens
from unslothrl.rewards.maths.notation.vocabulary import (
    BIG_OPERATORS,
    FUNCTIONS,
    GREEK_LETTERS,
    NAMING,
)

_SYMMETRIC = {"gcd", "lcm", "max", "min"}  # the order of the arguments does not count
_NAMES = NAMING | {"angle", "triangle", "mathbb"}
_FUNCTIONS_AND_BIG_OPERATORS = FUNCTIONS | BIG_OPERATORS


class Parser(Arithmetic):
    """Reads one expression from tokens."""

    def command_operand(self, name: str) -> Tree:
        if name in GREEK_LETTERS:
            return ("symbol", "\\" + name + self.subscript() + self.primes())
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
        if name in BIG_OPERATORS:
            return self.big_operator(name)
        if name in _NAMES:
            return ("symbol", name + " " + self.label())
        if name.startswith("begin ") and name[6:] == "vmatrix":
            return ("call", "det", *self.rows("vmatrix"))
        return self.fail(Token("command", name, False))

    def derivative(self) -> Tree | None:
        """The symbol that "\\frac{dy}{dx}" is; its d cannot be cancelled."""
        values = [token.value for token in self.tokens[self.at : self.at + 8]]
        if [*values[:2], *values[3:6], *values[7:]] != ["{", "d", "}", "{", "d", "}"]:
            return None
        if not (values[2].isalpha() and values[6].isalpha()):
            return None
        self.at += 8
        return ("symbol", f"d{values[2]}/d{values[6]}")

    def root(self, degree: int) -> Tree:
        """The radicand to the power 1 / degree; `\\sqrt[n]` names its own degree."""
        index: Tree = number(degree)
        if self.sign() == "[":
            self.at += 1
            index = self.expression()
            self.expect("]")
        return ("pow", self.argument(), ("pow", index, MINUS_ONE))

    def function(self, name: str) -> Tree:
        """A named function with its base ("\\log_2"), power ("\\sin^2") and arguments."""
        base: Tree | None = None
        power: Tree | None = None
        while self.sign() in ("_", "^"):
            if self.take("_"):
                base = self.atom()
            else:
                self.at += 1
                power = self.exponent()
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
                return self.arguments(closing)
        if self.take("-"):
            return [negative(self.function_arguments()[0])]
        factors = [self.mixed_or_factor()]
        while self.begins_factor() and self.command() not in _FUNCTIONS_AND_BIG_OPERATORS:
            if self.sign() in ("(", "[", "|") and factors[-1][0] != "number":
                break
            if self.tokens[self.at - 1].kind == "number" == self.tokens[self.at].kind:
                break
            factors.append(self.factor())
        return [mul(*factors)]

    def big_operator(self, name: str) -> Tree:
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


def expressions(tokens: Tokens) -> list[Tree]:
    """One tree; two where `\\pm` or `\\mp` stands in it."""
    if any(token.kind == "command" and token.value in ("pm", "mp") for token in tokens):
        return [Parser(tokens, +1).whole(), Parser(tokens, -1).whole()]
    return [Parser(tokens).whole()]
