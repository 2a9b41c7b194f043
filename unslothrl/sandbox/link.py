"""One end of a connection between two sandboxes: questions, replies, and the objects in them.

Part of `remote`: it runs inside sandboxes, where this package is not. Lists, dicts and other
containers keep their identity: both sides number them, and a message has what is in them.
"""

import json
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from unslothrl.sandbox.values import CONTAINERS, FROM_DATA, PLAIN, as_data

LONGEST = 16 << 20  # bytes of a message
OBJECT = "object "  # begins the kind of an object of a shared class, its name follows

Message = dict[str, Any]
Heap = dict[str, list]  # number of a container -> [kind, content]


class Raised(BaseException):
    """What the other side has raised: the names of its classes, and its text."""


class Link:
    """`classes` are those, by name, whose objects cross as data, by their attributes."""

    side = ""  # the letter that begins the numbers of what this side has made

    def __init__(self, read_fd: int, write_fd: int, classes: dict[str, type]):
        self.input, self.output = os.fdopen(read_fd, "rb"), write_fd
        self.classes = classes
        self.objects: dict[str, Any] = {}  # number -> what both sides know
        self.numbers: dict[int, str] = {}  # id of such an object -> number

    def ask(self, op: str, on: str, values: Sequence = (), names: Iterable[str] = ()) -> Any:
        """What the other side returns, or Raised; its questions are answered meanwhile."""
        message = self.packed(values)
        given = set(message["heap"])
        self.send({"op": op, "on": on, "names": list(names), **message})
        while "op" in (reply := self.receive()):
            self.send(self.answered(reply, given))
        if "raised" in reply:
            raise Raised(reply["raised"], reply["message"])
        return self.unpacked(reply, given)[0]

    def answered(self, message: Message, may_change: Collection[str]) -> Message:
        """The reply to a question: the result, and what is now in the containers that came."""
        try:
            values = self.unpacked(message, may_change)
            result = self.perform(message["op"], message["on"], values, message["names"])
            return self.packed([result], message["heap"])
        except BaseException as error:
            names = [each.__name__ for each in type(error).__mro__]
            return {"raised": names, "message": text_of(error)}

    def perform(self, op: str, on: str, values: list, names: list[str]) -> Any:
        """The result of a question: `op` of the object with the number `on`."""
        raise NotImplementedError

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

    # To JSON

    def packed(self, values: Sequence, again: Iterable[str] = ()) -> Message:
        """-> {"values": ..., "heap": ...}; the heap has the containers `again` too."""
        heap: Heap = {}
        waiting = [self.objects[number] for number in again]
        packed = [self.pack(value, waiting) for value in values]
        while waiting:
            each = waiting.pop()
            number = self.numbers[id(each)]
            if number not in heap:
                heap[number] = [self.kind_of(each), self.content(each, waiting)]
        return {"values": packed, "heap": heap}

    def pack(self, value: Any, waiting: list) -> Any:
        """A value as JSON; containers are put into `waiting`."""
        if type(value) in PLAIN:
            return value
        if self.kind_of(value) is not None:
            waiting.append(value)
            return ["ref", self.number_of(value)]
        if isinstance(value, tuple | frozenset):
            name = "tuple" if isinstance(value, tuple) else "frozenset"
            return [name, [self.pack(each, waiting) for each in value]]
        data = as_data(value)
        return self.pack_other(value) if data is None else data

    def pack_other(self, value: Any) -> list:
        """What is no data as JSON."""
        raise NotImplementedError

    def kind_of(self, value: Any) -> str | None:
        """What sort of container a value is, None for any other value."""
        if type(value).__name__ in self.classes:
            return OBJECT + type(value).__name__
        return next((kind.__name__ for kind in CONTAINERS if isinstance(value, kind)), None)

    def number_of(self, value: Any) -> str:
        if id(value) not in self.numbers:
            number = f"{self.side}{len(self.objects)}"
            self.objects[number], self.numbers[id(value)] = value, number
        return self.numbers[id(value)]

    def content(self, value: Any, waiting: list) -> Any:
        """What is in a container: a list of its items, of pairs, or of its bytes in hexadecimal."""
        if type(value).__name__ in self.classes:
            pairs = attributes_of(value).items()
        elif isinstance(value, dict):
            pairs = value.items()
        elif isinstance(value, bytearray):
            return value.hex()
        else:
            return [self.pack(each, waiting) for each in value]
        return [[self.pack(each, waiting) for each in pair] for pair in pairs]

    # From JSON

    def unpacked(self, message: Message, may_change: Collection[str]) -> list:
        """The values of a message. Of the containers that this side has made, those with the
        numbers `may_change` get a new content, the others keep theirs. Raises ValueError, TypeError
        or KeyError for a message that cannot be."""
        heap: Heap = message["heap"]
        for number, (kind, _) in heap.items():
            if number not in self.objects:
                if number.startswith(self.side):
                    raise ValueError("a number of this side's")
                made = self.empty(kind)
                self.objects[number], self.numbers[id(made)] = made, number
        for number, (kind, content) in heap.items():
            known = self.objects[number]
            if number in may_change or not number.startswith(self.side):
                if self.kind_of(known) != kind:
                    raise ValueError("another kind of object")
                self.fill(known, kind, content)
        return [self.unpack(value) for value in message["values"]]

    def empty(self, kind: str) -> Any:
        """A new container."""
        if kind.startswith(OBJECT):
            of = self.classes[kind.removeprefix(OBJECT)]
            return of.__new__(of)  # type: ignore[call-overload]
        return {each.__name__: each for each in CONTAINERS}[kind]()

    def fill(self, container: Any, kind: str, content: Any) -> None:
        """Replaces what is in a container."""
        if kind == "bytearray":
            container[:] = bytes.fromhex(content)
        elif kind == "dict":
            items = {self.unpack(key): self.unpack(value) for key, value in content}
            container.clear()
            container.update(items)
        elif kind.startswith(OBJECT):
            self.fill_object(container, {name: self.unpack(value) for name, value in content})
        else:
            values = [self.unpack(each) for each in content]
            container.clear()
            (container.update if kind == "set" else container.extend)(values)

    def fill_object(self, target: Any, attributes: dict[str, Any]) -> None:
        for name in attributes_of(target).keys() - attributes.keys():
            object.__delattr__(target, name)
        for name, value in attributes.items():
            if name.startswith("__") or callable(getattr(type(target), name, None)):
                raise ValueError(f"{name} is the class's own")
            object.__setattr__(target, name, value)

    def unpack(self, value: Any) -> Any:
        """A value of a message."""
        if not isinstance(value, list):
            if isinstance(value, dict):
                raise TypeError("no value")
            return value
        kind, *parts = value
        if kind == "ref":
            return self.objects[parts[0]]
        if kind in ("tuple", "frozenset"):
            items = [self.unpack(each) for each in parts[0]]
            return tuple(items) if kind == "tuple" else frozenset(items)
        if kind in FROM_DATA:
            return FROM_DATA[kind](*parts)
        return self.unpack_other(kind, parts[0])

    def unpack_other(self, kind: str, name: str) -> Any:
        """What is no data."""
        raise NotImplementedError


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, those of __slots__ too."""
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
    names = [*getattr(value, "__dict__", {}), *slots]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except Exception:  # its own __str__ may raise
        return ""
