"""Why a text or an expression has no mathematical meaning, or no value."""


class Unreadable(ValueError):
    """The text is not in a notation that is understood."""


class Undefined(ArithmeticError):
    """The expression has no value there, or none that can be computed."""


class NotRational(ArithmeticError):
    """The value is no fraction, or too long a one."""
