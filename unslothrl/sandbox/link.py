"""One end of a connection between two sandboxes: questions, replies, and the values in them.

Part of `remote`: it runs inside sandboxes, where this package is not. A question or a reply is a
line of JSON; a value that is no JSON by itself is a list that begins with the name of its kind.
"""

import collections
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 16 << 20  # bytes of a message
MOST_ERROR = 1000  # characters of what is raised
LARGE = 1 << 53  # integers from there on travel in hexadecimal, whose conversion is quick
CONTAINERS = {
    each.__name__: each for each in (list, dict, set, bytearray, collections.deque)
}  # an object of a shared class is one as well
VALUES = {  # classes whose objects are made again of what pickle would take
    "builtins.range",
    "datetime.date",
    "datetime.datetime",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "fractions.Fraction",
}
ARRAYS = "biufcU"  # kinds of NumPy's: numbers and texts

Message = dict[str, Any]


class Raised(BaseException):
    """What the other side has raised: the names of its classes, and its text."""


class Link:
    """One end of the connection. Containers keep their identity within a question and its reply:
    the reply begins with what is now in those of the question, in their order.

    `classes` are those, by name, whose objects cross as data, by their attributes.
    """

    # What each side does: the result of a question, `op` of the object with the number `on`; and
    # what is no data, as JSON and back
    perform: Callable[[str, Any, list, list[str]], Any]
    pack_other: Callable[[Any], list]
    unpack_other: Callable[[str, Any], Any]

    def __init__(self, descriptor: int, classes: dict[str, type]):
        self.input, self.output = os.fdopen(descriptor, "rb"), descriptor
        self.classes = classes
        self.shared: list[Any] = []  # what is no data and has crossed: a number stands for it
        self.numbers: dict[int, int] = {}  # id of such an object -> its number

    def ask(self, op: str, on: Any, values: Sequence = (), names: Sequence[str] = ()) -> Any:
        """What the other side returns, or Raised; its questions are answered meanwhile."""
        given: list[Any] = []
        self.send({"op": op, "on": on, "names": list(names), **self.packed(values, given)})
        while "op" in (reply := self.receive()):
            self.send(self.answered(reply))
        if "raised" in reply:
            raise Raised(reply["raised"], reply["message"])
        return self.unpacked(reply, given)[0]

    def call(self, number: int, values: tuple, named: dict[str, Any]) -> Any:
        return self.ask("call", number, [*values, *named.values()], [*named])

    def answered(self, message: Message) -> Message:
        """The reply to a question: the result, and what is now in the containers that came."""
        try:
            given: list[Any] = []
            values = self.unpacked(message, given)
            result = self.perform(message["op"], message["on"], values, message["names"])
            return self.packed([result], given)
        except BaseException as error:
            names = [each.__name__ for each in type(error).__mro__]
            return {"raised": names, "message": str(error)[:MOST_ERROR]}

    def send(self, message: Message) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.output, data) :]

    def receive(self) -> Message:
        """Raises EOFError where the other side has ended."""
        line = self.input.readline(LONGEST)
        if not line.endswith(b"\n"):
            raise EOFError("the other side has ended")
        return json.loads(line)

    def number_of(self, value: Any) -> int:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.shared)
            self.shared.append(value)
        return self.numbers[id(value)]

    def packed(self, values: Sequence, held: list[Any]) -> Message:
        """-> {"values": ..., "heap": [kind and content of each container]}. `held`: the containers
        that both sides know; those that come with the values are appended."""
        numbers = {id(each): number for number, each in enumerate(held)}

        def pack(value: Any) -> Any:
            if value is None or isinstance(value, bool | int | float | str):
                return as_json(value)
            if self.kind_of(value) is not None:
                if id(value) not in numbers:
                    numbers[id(value)] = len(held)
                    held.append(value)
                return ["ref", numbers[id(value)]]
            parts = parts_of(value)
            return self.pack_other(value) if parts is None else [parts[0], *map(pack, parts[1:])]

        packed = [pack(value) for value in values]
        heap = []
        for each in held:  # which grows
            kind = self.kind_of(each)
            heap.append([kind, content_of(each, str(kind), pack)])
        return {"values": packed, "heap": heap}

    def kind_of(self, value: Any) -> str | None:
        """What sort of container a value is, None for any other value."""
        if type(value).__name__ in self.classes:
            return f"object {type(value).__name__}"
        return next((name for name, kind in CONTAINERS.items() if isinstance(value, kind)), None)

    def unpacked(self, message: Message, held: list[Any]) -> list:
        """The values of a message. `held`: the containers that both sides know, which get a new
        content; those that come are appended. Raises ValueError, TypeError, KeyError or IndexError
        for a message that cannot be."""
        heap = message["heap"]
        held += [self.empty(kind) for kind, _ in heap[len(held) :]]

        def unpack(value: Any) -> Any:
            if isinstance(value, dict):
                raise TypeError("no value")
            if not isinstance(value, list):
                return value
            kind, *parts = value
            if kind == "ref":
                return held[parts[0]]
            if kind in MADE:
                return MADE[kind](*map(unpack, parts))
            return self.unpack_other(kind, parts[0])

        for container, (kind, content) in zip(held, heap, strict=True):
            if self.kind_of(container) != kind:
                raise ValueError("another kind of object")
            fill(container, kind, content, unpack)
        return [unpack(value) for value in message["values"]]

    def empty(self, kind: str) -> Any:
        if kind in CONTAINERS:
            return CONTAINERS[kind]()
        of = self.classes[kind.removeprefix("object ")]
        return of.__new__(of)  # type: ignore[call-overload]


def as_json(value: Any) -> Any:
    """None, a number or a text; of a class that is derived from these what it derives from."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if -LARGE < value < LARGE else ["int", hex(value)]
    if isinstance(value, float | str):
        return float(value) if isinstance(value, float) else str(value)
    return value


def parts_of(value: Any) -> tuple | None:
    """Other data as (kind, what it is made of); None for what is no data."""
    if isinstance(value, tuple | frozenset):
        return ("tuple" if isinstance(value, tuple) else "frozenset", *value)
    if isinstance(value, complex):
        return "complex", value.real, value.imag
    if isinstance(value, bytes):
        return "bytes", value.hex()
    name = f"{type(value).__module__}.{type(value).__name__}"
    if name in VALUES:
        return name, *value.__reduce_ex__(2)[1]
    is_array = name.startswith("numpy.") and hasattr(value, "tolist")
    if is_array and value.dtype.kind in ARRAYS:
        return "array", value.dtype.str, value.shape, *value.reshape(-1).tolist()
    return None


def array_of(dtype: str, shape: tuple, *items: Any) -> Any:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.kind not in ARRAYS:
        raise ValueError("an array of something else")
    array = numpy.array(items, dtype=kind).reshape(shape)
    return array if shape else array.item()


def maker(name: str) -> Callable:
    """-> a function that calls a class of a module, which is imported then."""
    module, _, of_module = name.partition(".")
    return lambda *parts: getattr(__import__(module), of_module)(*parts)


MADE: dict[str, Callable] = {  # kind -> what makes a value of its parts
    "int": lambda text: int(text, 16),
    "tuple": lambda *items: items,
    "frozenset": lambda *items: frozenset(items),
    "complex": complex,
    "bytes": bytes.fromhex,
    "array": array_of,
    **{name: maker(name) for name in VALUES},
}


def content_of(value: Any, kind: str, pack: Callable) -> list:
    """What is in a container: a list of its items, or of pairs."""
    if kind in ("list", "set", "deque", "bytearray"):
        return [pack(each) for each in value]
    pairs = value.items() if kind == "dict" else attributes_of(value).items()
    return [[pack(key), pack(each)] for key, each in pairs]


def fill(container: Any, kind: str, content: Any, unpack: Callable) -> None:
    """Replaces what is in a container."""
    if kind in ("list", "set", "deque", "bytearray"):
        values = [unpack(each) for each in content]
        container.clear()
        (container.update if kind == "set" else container.extend)(values)
    else:
        items = {unpack(key): unpack(value) for key, value in content}
        if kind == "dict":
            container.clear()
            container.update(items)
            return
        for name in attributes_of(container).keys() - items.keys():
            object.__delattr__(container, name)
        for name, value in items.items():
            if name.startswith("__") or callable(getattr(type(container), name, None)):
                raise ValueError(f"{name} is the class's own")
            object.__setattr__(container, name, value)


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, those of __slots__ too."""
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
    names = [*getattr(value, "__dict__", {}), *slots]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}
