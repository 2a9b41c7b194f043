"""The grammar of sums, products, powers and numbers."""

from abc import ABC, abstractmethod
from fractions import Fraction

from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.expressions.cursor import Cursor
from unslothrl.rewards.maths.expressions.tree import Tree, add, divided, mul, negative, number
from unslothrl.rewards.maths.notation.tokens import Token, Tokens
from unslothrl.rewards.maths.notation.vocabulary import (
    BIG_OPERATORS,
    FUNCTIONS,
    GREEK_LETTERS,
    NAMING,
)

MAX_DEPTH = 50  # of brackets, fractions and arguments
MAX_EXPONENT = 100_000  # of "1e9"
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPERANDS = FUNCTIONS | GREEK_LETTERS | NAMING | BIG_OPERATORS | {
    "frac", "sqrt", "cbrt", "binom", "lfloor", "lceil", "infty", "angle", "triangle", "mathbb",
    "Vert",
}  # fmt: skip


def exact_decimal(text: str) -> Fraction:
    """ "1.5e3" as it stands."""
    _, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise Unreadable("exponent")
    return Fraction(text)


class Arithmetic(Cursor, ABC):
    """Reads one expression from tokens; what a LaTeX command takes is left to `command_operand`.

    `plus_minus` is the sign that `\\pm` stands for. Every method raises Unreadable.
    """

    def __init__(self, tokens: Tokens, plus_minus: int = 1):
        super().__init__(tokens)
        self.depth = 0
        self.plus_minus = plus_minus
        self.bars = 0  # `|` that wait for their partner

    @abstractmethod
    def command_operand(self, name: str) -> Tree:
        """The operand that begins with the command `name`, which has been read."""

    def whole(self) -> Tree:
        """The expression that all tokens are."""
        tree = self.expression()
        if self.at != len(self.tokens):
            raise Unreadable(f"unexpected {self.tokens[self.at].value}")
        return tree

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
            return token.value in _OPERANDS or token.value.startswith("begin ")
        return True

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
            parser = type(self)(self.tokens[self.at + 2 :])
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
            beyond = [token.value for token in self.tokens[self.at + length + 1 :][:2]]
            if beyond[:1] != ["circ"] and beyond != ["{", "circ"]:
                return None
        self.at += length
        return number(int(values[0]) + Fraction(int(top), int(bottom)))

    def factor(self) -> Tree:
        return self.with_suffixes(self.atom())

    def mixed_or_factor(self) -> Tree:
        mixed = self.mixed_number()
        return self.factor() if mixed is None else self.with_suffixes(mixed)

    def with_suffixes(self, tree: Tree) -> Tree:
        """With the powers, factorials and signs after it."""
        while True:
            if self.sign() == "^":
                self.at += 1
                tree = self.power(tree)
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

    def power(self, base: Tree) -> Tree:
        """After `^`: the power, or the degrees that "^\\circ" makes of the base."""
        if self.take("circ"):
            return ("call", "degree", base)
        if self.sign() == "{" and self.command(1) == "circ" and self.sign(2) == "}":
            self.at += 3
            return ("call", "degree", base)
        return ("pow", base, self.exponent())

    def exponent(self) -> Tree:
        """What follows `^`: a group, a number with its sign, or one atom."""
        if self.take("-"):
            return negative(self.exponent())
        self.take("+")
        if self.sign() == "(":
            return self.atom()
        tree = self.atom()
        if self.sign() == "^":  # 2^3^2, as plain text has it
            self.at += 1
            return ("pow", tree, self.exponent())
        return tree

    def argument(self) -> Tree:
        """What `\\frac` takes: a group or a single digit, letter or command."""
        token = self.peek()
        if token is not None and token.kind == "number" and len(token.value) > 1:
            rest = Token("number", token.value[1:], False)
            self.tokens = [*self.tokens[: self.at], rest, *self.tokens[self.at + 1 :]]
            return number(int(token.value[0])) if token.value[0].isdecimal() else self.fail(token)
        return self.atom()

    def atom(self) -> Tree:
        """A number, letter, command with its arguments, or group in brackets."""
        token = self.peek()
        if token is None or token.kind == "text":
            return self.fail(token)
        self.at += 1
        if token.kind == "number":
            return self.decimal(token)
        if token.kind == "letter":
            return self.letter(token)
        if token.kind == "command":
            return self.command_operand(token.value)
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
        """A number, with repeating digits where a bar stands over them: "0.1\\overline{6}"."""
        if "." in token.value and self.command() in ("overline", "bar", "dot"):
            self.at += 1
            digits = self.digits()
            places = len(token.value.partition(".")[2])
            repeated = Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
            return number(Fraction(token.value + "0") + repeated)
        if token.value.endswith(".") and self.begins_factor():
            return self.fail(token)
        return number(exact_decimal(token.value))

    def letter(self, token: Token) -> Tree:
        """A variable with its subscript and primes; f, g and h are functions before a bracket."""
        if token.value == "m" and self.command() == "angle":
            return self.atom()  # the measure of an angle
        name = token.value + self.subscript()
        primes = self.primes()
        name += primes
        if self.sign() == "(" and (token.value in "fgh" or primes):
            return self.applied(name)
        after = [token.value for token in self.tokens[self.at : self.at + 6]]
        if token.value == "C" and [*after[:1], *after[2:3], *after[4:5]] == ["(", ",", ")"]:
            self.at += 1
            return ("call", "binomial", *self.arguments(")"))
        if token.value in "fgh" and after == ["^", "{", "-", "1", "}", "("]:
            self.at += 5
            return self.applied(name + "^-1")
        return ("symbol", name)

    def applied(self, name: str) -> Tree:
        """A function without a known meaning, such as f(x)."""
        self.expect("(")
        return ("call", "of " + name, *self.arguments(")"))

    def arguments(self, closing: str) -> list[Tree]:
        """What is separated by commas, up to the bracket that closes."""
        arguments = [self.expression()]
        while self.take(","):
            arguments.append(self.expression())
        self.expect(closing)
        return arguments
