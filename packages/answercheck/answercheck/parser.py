"""The parser of expressions: sums, products, powers, and the commands of LaTeX."""

import re
from fractions import Fraction

from answercheck.tokens import Token, Tokens, Unreadable
from answercheck.trees import MINUS_ONE, Tree, add, divided, mul, negative, number
from answercheck.vocabulary import BIG_OPERATORS, FUNCTIONS, GREEK_LETTERS, NAMING

MAX_DEPTH = 50  # of brackets, fractions and arguments
MAX_EXPONENT = 100_000  # of "1e9"
END = Token("end", "")
_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|"}
_CLOSING_COMMANDS = {"lfloor": "rfloor", "lceil": "rceil", "Vert": "Vert"}
_OPERANDS = {"frac", "sqrt", "cbrt", "binom", "lfloor", "lceil", "infty", "Vert"}
_OPERANDS |= FUNCTIONS | GREEK_LETTERS | NAMING | BIG_OPERATORS
_INVERTIBLE = {"sin", "cos", "tan", "cot", "sec", "csc"}  # sin^{-1} is arcsin
_SYMMETRIC = {"gcd", "lcm", "max", "min"}  # the order of the arguments does not count
_DERIVATIVE = re.compile(r"\{d([a-zA-Z]+)\}\{d([a-zA-Z]+)\}")


def expressions(tokens: Tokens) -> list[Tree]:
    """The tree that all tokens are; two where `\\pm` or `\\mp` stands in it. Unreadable."""
    alternates = any(token.kind == "command" and token.value in ("pm", "mp") for token in tokens)
    parsers = [Parser(tokens, +1), Parser(tokens, -1)] if alternates else [Parser(tokens)]
    trees = [parser.expression() for parser in parsers]
    if any(parser.tokens[parser.at] is not END for parser in parsers):
        raise Unreadable("no expression goes on like this")
    return trees


class Parser:
    """Reads one expression from tokens, by recursive descent.

    `plus_minus` is the sign that `\\pm` stands for. Every method raises Unreadable.
    """

    def __init__(self, tokens: Tokens, plus_minus: int = 1):
        self.tokens, self.at = [*tokens, END], 0
        self.plus_minus = plus_minus
        self.depth = 0
        self.bars = 0  # `|` that wait for their partner

    @property
    def next(self) -> str:
        kind, value = self.tokens[self.at]
        return value if kind in ("sign", "command") else ""

    def values(self, most: int) -> list[str]:
        return [token.value for token in self.tokens[self.at : self.at + most]]

    def take(self, *values: str) -> bool:
        """Goes on where the next sign or command is one of these."""
        is_one = self.next in values
        self.at += is_one
        return is_one

    def expect(self, value: str) -> None:
        if not self.take(value):
            raise Unreadable(f"{value} is missing")

    def following(self) -> Token:
        token = self.tokens[self.at]
        if token is END:
            raise Unreadable("end")
        self.at += 1
        return token

    def expression(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too deep")
        terms = [self.signed_term()]
        while self.next in ("+", "-", "pm", "mp"):
            terms.append(self.signed_term())
        self.depth -= 1
        return add(*terms)

    def signed_term(self) -> Tree:
        minus = alternates = False
        while (sign := self.next) in ("+", "-", "pm", "mp"):
            self.at += 1
            if sign in ("pm", "mp"):
                if alternates:
                    raise Unreadable("two alternative signs")
                alternates = True
                minus ^= (self.plus_minus < 0) == (sign == "pm")
            minus ^= sign == "-"
        tree = self.term()
        return negative(tree) if minus else tree

    def term(self) -> Tree:
        tree = self.mixed_or_factor()
        while True:
            if self.take("*", "cdot", "times", "bullet"):
                tree = mul(tree, self.signed_factor())
            elif self.take("/", "div"):
                tree = divided(tree, self.signed_factor())
            elif self.begins_factor():
                before, first, second = self.tokens[self.at - 1 : self.at + 2]
                is_loose = self.next == "{" and (  # shows as more digits or a sum: "5{6}", "5{+1}"
                    second.kind == "number" or second.value in ("+", "-", "")
                )
                is_after = before.kind == "number" or before.value == "}"  # "\\frac{3}{4}2"
                if (is_after and first.kind == "number") or is_loose:
                    raise Unreadable("two numbers side by side")
                tree = mul(tree, self.factor())
            else:
                return tree

    def signed_factor(self) -> Tree:
        if self.take("-"):
            return negative(self.signed_factor())
        self.take("+")
        return self.factor()

    def begins_factor(self) -> bool:
        kind, value = self.tokens[self.at]
        if kind == "sign":
            return value in "([{" or (value == "|" and not self.bars)
        if kind == "command":
            return value in _OPERANDS or value.startswith("begin ")
        return kind in ("number", "letter")

    def mixed_or_factor(self) -> Tree:
        return self.with_suffixes(self.mixed_number() or self.atom())

    def mixed_number(self) -> Tree | None:
        """ "3\\frac{1}{2}" and "3 1/2": a proper fraction right after a whole number."""
        first, *others = self.tokens[self.at : self.at + 4]
        if first.kind != "number" or not first.value.isdecimal():
            return None
        kinds, values = [token.kind for token in others], [token.value for token in others]
        if kinds == ["number", "sign", "number"] and values[1] == "/":
            top, bottom, length = values[0], values[2], 4
        elif kinds[0] == "command" and values[0] == "frac":
            parser = Parser(self.tokens[self.at + 2 : -1])
            parts = parser.argument(), parser.argument()
            top, bottom = (str(part[1]) if part[0] == "number" else "" for part in parts)
            length = 2 + parser.at
        else:
            return None
        if not (top.isdecimal() and bottom.isdecimal() and 0 < int(top) < int(bottom)):
            return None
        after, *beyond = self.tokens[self.at + length :][:2]
        is_part = after.value in ("^", "!") or after.kind == "number"
        if is_part and [token.value for token in beyond] != ["circ"]:
            return None
        self.at += length
        return number(int(first.value) + Fraction(int(top), int(bottom)))

    def factor(self) -> Tree:
        return self.with_suffixes(self.atom())

    def with_suffixes(self, tree: Tree) -> Tree:
        while True:
            if self.take("^"):
                is_degree = self.take("circ")
                tree = ("call", "degree", tree) if is_degree else ("pow", tree, self.exponent())
            elif self.take("!"):
                tree = ("call", "double factorial" if self.take("!") else "factorial", tree)
            elif self.take("%"):
                tree = ("call", "percent", tree)
            elif tree[0] == "number" and self.take("circ"):
                tree = ("call", "degree", tree)
            elif self.next == "'":
                raise Unreadable("prime")
            else:
                return tree

    def exponent(self) -> Tree:
        """What follows `^`: a group, a number with its sign, or one atom."""
        if self.take("-"):
            return negative(self.exponent())
        self.take("+")
        is_group = self.next == "("
        tree = self.atom()
        if not is_group and self.take("^"):  # 2^3^2, as plain text has it
            return ("pow", tree, self.exponent())
        return tree

    def argument(self) -> Tree:
        """What `\\frac` takes: a group or a single digit, letter or command."""
        kind, value = self.tokens[self.at]
        if kind == "number" and len(value) > 1:
            self.tokens[self.at] = Token("number", value[1:])
            return number(int(value[0]))
        return self.atom()

    def atom(self) -> Tree:
        """A number, letter, command with its arguments, or group in brackets."""
        token = self.following()
        if token.kind == "number":
            return self.decimal(token.value)
        if token.kind == "letter":
            return self.letter(token.value)
        if token.kind == "command":
            return self.operand(token.value)
        is_bar = token.value == "|"
        if token.kind == "text" or token.value not in _CLOSING or (is_bar and self.bars > 2):
            raise Unreadable(token.value)
        self.bars += is_bar
        tree = self.expression()
        self.expect(_CLOSING[token.value])
        self.bars -= is_bar
        return ("call", "abs", tree) if is_bar else tree

    def decimal(self, text: str) -> Tree:
        """A number, with repeating digits where a bar stands over them: "0.1\\overline{6}"."""
        if "." in text and self.take("overline", "bar", "dot"):
            digits = self.written()
            if not digits.isdecimal():
                raise Unreadable(digits)
            places = len(text.partition(".")[2])
            repeated = Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
            return number(Fraction(text + "0") + repeated)
        _, _, exponent = text.lower().partition("e")
        is_large = exponent != "" and abs(int(exponent)) > MAX_EXPONENT
        if is_large or (text.endswith(".") and self.begins_factor()):
            raise Unreadable(text)
        return number(Fraction(text))

    def letter(self, letter: str) -> Tree:
        """A variable with its subscript and primes; f, g and h are functions before a bracket."""
        if letter == "m" and self.next == "angle":
            return self.atom()  # the measure of an angle
        if letter == "C" and self.values(5)[::2] == ["(", ",", ")"]:
            self.at += 1
            return ("call", "binomial", *self.arguments(")"))
        name = letter + self.marks()
        if letter in "fgh" and self.values(6) == ["^", "{", "-", "1", "}", "("]:
            self.at += 5
            name += "^-1"
        if (letter in "fgh" or "'" in name) and self.take("("):
            return ("call", "of " + name, *self.arguments(")"))
        return ("symbol", name)

    def arguments(self, closing: str) -> list[Tree]:
        arguments = [self.expression()]
        while self.take(","):
            arguments.append(self.expression())
        self.expect(closing)
        return arguments

    def marks(self) -> str:
        marks = "_" + self.written() if self.take("_") else ""
        while self.take("'"):
            marks += "'"
        return marks

    def written(self) -> str:
        if not self.take("{"):
            return self.following().value
        parts: list[str] = []
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next, 0)
            parts.append(self.following().value)
        return "".join(parts[:-1])

    def operand(self, name: str) -> Tree:
        """The operand that begins with the command `name`, which has been read."""
        if name in GREEK_LETTERS:
            return ("symbol", "\\" + name + self.marks())
        if name in FUNCTIONS:
            return self.function(name)
        if name == "frac" and (parts := _DERIVATIVE.fullmatch("".join(self.values(8)))):
            self.at += 8  # its d cannot be cancelled
            return ("symbol", f"d{parts[1]}/d{parts[2]}")
        if name in ("frac", "binom"):
            first, second = self.argument(), self.argument()
            return divided(first, second) if name == "frac" else ("call", "binomial", first, second)
        if name in ("sqrt", "cbrt"):
            index = number(3 if name == "cbrt" else 2)
            if self.take("["):
                index = self.expression()
                self.expect("]")
            return ("pow", self.argument(), ("pow", index, MINUS_ONE))
        if name in _CLOSING_COMMANDS:
            inside = self.expression()
            self.expect(_CLOSING_COMMANDS[name])
            return ("call", name.removeprefix("l"), inside)
        if name in BIG_OPERATORS:  # compared as it is written
            bounds = {"_": "", "^": ""}
            while (where := self.next) in bounds:
                self.at += 1
                bounds[where] = self.written()
            return ("call", f"{name} {bounds['_']} {bounds['^']}", self.term())
        if name in NAMING:  # "\\vec{AB}", "\\angle ABC"
            letters = ""
            while self.tokens[self.at].kind == "letter":
                letters += self.following().value
            return ("symbol", f"{name} {letters or self.written()}")
        if name == "begin vmatrix":
            cells = ""
            while not self.take("end vmatrix"):
                cells += self.following().value + " "
            return ("call", "det", ("symbol", cells))
        raise Unreadable(name)

    def function(self, name: str) -> Tree:
        """A named function with its base ("\\log_2"), power ("\\sin^2") and arguments."""
        base: list[Tree] = []
        power: Tree | None = None
        while (mark := self.next) and self.take("_", "^"):
            if mark == "_":
                base = [self.atom()]
            else:
                power = self.exponent()
        inside = self.function_arguments()
        if power == MINUS_ONE and name in _INVERTIBLE:
            name, power = "arc" + name, None
        inside = sorted(inside, key=repr) if name in _SYMMETRIC else inside
        tree: Tree = ("call", name, *inside, *base)
        if name == "exp":
            tree = ("pow", ("symbol", "e"), *inside)
        return tree if power is None else ("pow", tree, power)

    def function_arguments(self) -> list[Tree]:
        """In brackets, or the product that follows: "\\sin 2x \\cos x" is sin(2x) cos(x)."""
        for opening, closing in (("(", ")"), ("lset", "rset")):
            if self.take(opening):
                return self.arguments(closing)
        if self.take("-"):
            return [negative(self.function_arguments()[0])]
        factors = [self.mixed_or_factor()]
        while self.begins_factor() and self.next not in FUNCTIONS | BIG_OPERATORS:
            if self.next in ("(", "[", "|") and factors[-1][0] != "number":
                break
            if self.tokens[self.at - 1].kind == "number" == self.tokens[self.at].kind:
                break
            factors.append(self.factor())
        return [mul(*factors)]
