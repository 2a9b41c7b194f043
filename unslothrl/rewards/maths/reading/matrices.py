"""Matrices, and definitions by cases, which LaTeX writes as matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.expressions.parser import expressions
from unslothrl.rewards.maths.expressions.tree import Tree, mul, negative
from unslothrl.rewards.maths.kinds import Answer, Cases, Collection, Matrix, Value
from unslothrl.rewards.maths.notation.brackets import split
from unslothrl.rewards.maths.notation.tokens import Tokens

_CASES = {"cases", "aligned"}
_ENVIRONMENTS = _CASES | {"pmatrix", "bmatrix", "matrix", "array", "smallmatrix", "Bmatrix"}


@dataclass(frozen=True)
class MatrixTokens:
    """The tokens of a matrix: what stands before it, its environment, its cells by rows."""

    factor: Tokens
    environment: str
    rows: list[list[Tokens]]


def parts_of(tokens: Tokens) -> MatrixTokens | None:
    """None where the tokens are no matrix, or more than one."""
    begins = [i for i, token in enumerate(tokens) if token.value.startswith("begin ")]
    if len(begins) != 1 or not tokens[-1].value.startswith("end "):
        return None
    (begin,) = begins
    environment = tokens[begin].value[6:]
    if tokens[-1].value != f"end {environment}" or environment not in _ENVIRONMENTS:
        return None
    rows = [split(row, "&") for row in split(tokens[begin + 1 : -1], "\\")]
    return MatrixTokens(tokens[:begin], environment, [row for row in rows if row])


def answer(tokens: MatrixTokens, rows: Sequence[tuple[Answer, ...]]) -> Answer | None:
    """The answer that the cells, once read, are together; None where they are none. Unreadable."""
    factor = tokens.factor
    if tokens.environment in _CASES:
        if factor or any(len(row) > 2 for row in rows):
            return None
        if all(len(row) == 1 for row in rows):
            return Collection(tuple(row[0] for row in rows))
        return Cases(tuple(rows))
    if not factor:
        return Matrix(tuple(rows))
    if factor[-1].value in ("cdot", "times", "*"):
        factor = factor[:-1]
    is_minus = [token.value for token in factor] == ["-"]
    (by,) = [negative(("number", Fraction(1)))] if is_minus else expressions(factor)
    return Matrix(tuple(tuple(scaled(by, cell) for cell in row) for row in rows))


def scaled(by: Tree, cell: Answer) -> Answer:
    if not isinstance(cell, Value) or cell.unit:
        raise Unreadable("a factor of what is no number")
    return Value(mul(by, cell.tree))
