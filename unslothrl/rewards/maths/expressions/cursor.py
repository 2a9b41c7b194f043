"""A position in the tokens of an expression."""

from typing import NoReturn

from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.notation.tokens import Token, Tokens


class Cursor:
    """The tokens of an expression, and how far they have been read."""

    def __init__(self, tokens: Tokens):
        self.tokens, self.at = tokens, 0

    def peek(self, ahead: int = 0) -> Token | None:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else None

    def sign(self, ahead: int = 0) -> str:
        """The sign that comes next, "" where none does; commands have no sign."""
        token = self.peek(ahead)
        return token.value if token is not None and token.kind == "sign" else ""

    def command(self, ahead: int = 0) -> str:
        """The command that comes next, "" where none does."""
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
        """Takes this sign or command. Unreadable where another comes."""
        if not self.take(value):
            raise Unreadable(f"{value} is missing")

    def fail(self, token: Token | None) -> NoReturn:
        raise Unreadable(f"unexpected {token.value if token else 'end'}")

    def digits(self) -> str:
        """The repeating digits of a decimal, in braces or not."""
        braces = self.take("{")
        token = self.peek()
        if token is None or token.kind != "number" or not token.value.isdecimal():
            self.fail(token)
        self.at += 1
        if braces:
            self.expect("}")
        return token.value

    def subscript(self) -> str:
        """ "_n" where one follows, else ""."""
        if self.sign() != "_":
            return ""
        self.at += 1
        return "_" + self.written()

    def primes(self) -> str:
        primes = ""
        while self.take("'"):
            primes += "'"
        return primes

    def written(self) -> str:
        """The next group or token as text."""
        if not self.take("{"):
            token = self.peek()
            if token is None:
                self.fail(token)
            self.at += 1
            return token.value
        depth = 1
        parts: list[str] = []
        while True:
            token = self.peek()
            if token is None:
                self.fail(token)
            self.at += 1
            depth += {"{": 1, "}": -1}.get(token.value, 0) if token.kind == "sign" else 0
            if depth == 0:
                return "".join(parts)
            parts.append(token.value)

    def label(self) -> str:
        """ "{AB}" or "ABC" after `\\vec`, `\\angle`."""
        if self.sign() == "{":
            return self.written()
        parts = ""
        while (token := self.peek()) is not None and token.kind == "letter":
            parts += token.value
            self.at += 1
        return parts or self.written()
