"""Two programs in a sandbox each, of which one holds tests and calls functions of the other.

    verdict(...)   holds the assertions, evaluates them, and alone says whether they hold
    serve(...)     runs the program, which knows nothing of them and is asked for names and calls

This file and `link` run on both sides, where this package is not: they import the standard library
and one another alone. Only data crosses, and objects of classes that the row's own code defines, by
their attributes. What is no data stays on its side, and the tests have a `RemoteObject` of it,
which is never true, never equal to anything and no array: no `__eq__`, `__bool__` or `__len__` of
the program's decides a test.
"""

import ast
import builtins
import enum
import operator
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from unslothrl.sandbox.link import Link, Raised

FAILED = 1  # exit code of tests that can no longer pass
NUMPY = "np"  # the name that it is known by


class Serving(Link):
    """The program's side: answers all that it is asked."""

    def __init__(self, descriptor: int, names: dict[str, Any], classes: dict[str, type]):
        super().__init__(descriptor, classes)
        self.names = names  # the program's

    def perform(self, op: str, on: Any, values: list, names: list[str]) -> Any:
        if op == "name":
            return found(self.names, on)
        if op == "call":
            return called(self.shared[on], values, names)
        return OPERATIONS[op](self.shared[on], *values)

    def pack_other(self, value: Any) -> list:
        return ["remote", self.number_of(value)]

    def unpack_other(self, kind: str, number: Any) -> Any:
        if kind == "remote":
            return self.shared[number]
        if kind == "builtin":
            return getattr(builtins, number)
        return lambda *values, **named: self.call(number, values, named)


class Asking(Link):
    """The tests' side. What cannot be, and the end of the program, ends the tests at once, so that
    no `except` of theirs goes on."""

    def __init__(self, descriptor: int, names: dict[str, Any], expects: str):
        """`expects`: the tests, which may say that they expect StopIteration."""
        super().__init__(descriptor, classes_of(names))
        defined = defined_in(names)
        self.errors = {n: each for n, each in defined.items() if issubclass(each, Exception)}
        self.may_stop = StopIteration.__name__ in expects
        self.calls = 0
        self.remotes: dict[int, RemoteObject] = {}

    def ask(self, op: str, on: Any, values: Sequence = (), names: Sequence[str] = ()) -> Any:
        self.calls += op == "call"
        try:
            return super().ask(op, on, values, names)
        except Raised as raised:
            kinds, message = raised.args
            error = error_of(kinds, message, self.errors)
        except BaseException:
            os._exit(FAILED)
        if not isinstance(error, Exception):
            os._exit(FAILED)  # it wanted to end
        if isinstance(error, StopIteration) and op != "next" and not self.may_stop:
            os._exit(FAILED)  # it would end a map() of the tests as if all were well
        raise error

    def name(self, name: str) -> Any:
        """What `solution.name` is where the tests import the program. AttributeError."""
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.ask("name", name)
        except KeyError:
            raise AttributeError(name) from None

    def perform(self, op: str, on: Any, values: list, names: list[str]) -> Any:
        """Calls a function of the tests' that was an argument of the program's."""
        if op != "call" or not isinstance(on, int):
            os._exit(FAILED)
        try:
            return called(self.shared[on], values, names)
        except AssertionError:
            os._exit(FAILED)  # the program could catch it

    def pack_other(self, value: Any) -> list:
        if type(value) is RemoteObject:
            return ["remote", vars(value)["_number"]]
        name = getattr(value, "__name__", "")
        if name and getattr(builtins, name, None) is value:
            return ["builtin", name]
        if isinstance(value, types.FunctionType):
            return ["function", self.number_of(value)]
        raise TypeError(f"a program cannot be given {type(value).__name__}")

    def unpack_other(self, kind: str, number: Any) -> Any:
        if kind != "remote" or not isinstance(number, int):
            raise ValueError(kind)
        return self.remotes.setdefault(number, RemoteObject(self, number))


# Methods of Python's own texts, sets and numbers that say whether something holds: a test that
# calls one expects such a value, and gets no object that says yes to everything.
VERDICTS = frozenset(
    name
    for kind in (str, bytes, set, float)
    for name in dir(kind)
    if name.startswith(("is", "startswith", "endswith"))
)


def refuses(*_: Any, **__: Any) -> Any:
    raise TypeError("an object of the program's own is compared with nothing: compare its data")


class RemoteObject:
    """An object of the program's. What its operations return is data, or a RemoteObject again."""

    def __init__(self, link: Asking, number: int):
        vars(self).update(_link=link, _number=number)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._link.call(self._number, values, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        if name in VERDICTS:
            refuses()
        return self._link.ask("get", self._number, [name])

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", self._number, [name, value])

    def __contains__(self, item: Any) -> bool:
        return any(each == item for each in self)  # type: ignore[attr-defined]

    __hash__ = object.__hash__
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = refuses
    __array__ = refuses  # or NumPy would take what has a length of 0 for an array equal to any


OPERATIONS: dict[str, Callable] = {
    "get": getattr,
    "set": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "len": len,
    "iter": iter,
    "next": next,
    "str": str,
    "repr": repr,
    "instancecheck": lambda target, value: isinstance(value, target),
}


def asking(op: str) -> Callable:
    return lambda self, *values: self._link.ask(op, self._number, values)


for _op in OPERATIONS.keys() - {"get", "set"}:
    setattr(RemoteObject, f"__{_op}__", asking(_op))


def called(function: Callable, values: list, names: list[str]) -> Any:
    """The last of the values are those of parameters with these names."""
    count = len(values) - len(names)
    return function(*values[:count], **dict(zip(names, values[count:], strict=True)))


def error_of(names: list[str], message: str, own: dict[str, type]) -> BaseException:
    """An error of the first of the names that is the row's class, or Python's, with a text."""
    for name in names:
        kind = own.get(name) or getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            try:
                return kind(message)
            except TypeError:  # of Unicode, which takes more
                continue
    return Exception(message)


def found(names: dict[str, Any], expression: str) -> Any:
    """What stands for this in the program: a function, or a method of its class Solution; or the
    value of an expression such as Solution().add."""
    solution = names.get("Solution")
    if expression.isidentifier() and expression not in names and hasattr(solution, expression):
        return getattr(solution(), expression)  # type: ignore[misc]
    return names[expression] if expression.isidentifier() else eval(expression, names)


def serve(descriptor: int, text: str, prelude: str, entry_point: str | None) -> None:
    """The program's process: runs the row's code and the program, then answers until the end."""
    names = module_named("solution")
    run_each(prelude, names)
    shared = classes_of(names)
    if entry_point is not None:
        names.pop(entry_point, None)  # a stub with a docstring
    exec(compile(text, "main.py", "exec"), names)
    shared = {name: names.get(name, each) for name, each in shared.items()}
    link = Serving(descriptor, names, shared)
    while True:
        link.send(link.answered(link.receive()))


def verdict(descriptor: int, tests: dict[str, Any]) -> bool:
    """The tests' process. -> True where they have called the program and all of them hold."""
    names = module_named("tests")
    run_each(tests["prelude"], names)
    link = Asking(descriptor, names, tests["setup"] + tests["assertions"])
    for name in tests["modules"]:
        names[name] = __import__("numpy" if name == NUMPY else name)
    if (entry := tests["entry_point"]) is not None:
        names["candidate"] = link.ask("name", entry)
        if entry.isidentifier():
            names[entry] = names["candidate"]
    for name in tests["names"]:
        try:
            names[name] = link.ask("name", name)
        except Exception:  # the program has none: a NameError will say so where it is used
            names.pop(name, None)
    module_named("solution")["__getattr__"] = link.name
    exec(compile(tests["setup"], "setup.py", "exec"), names)
    exec(compile(tests["assertions"], "tests.py", "exec"), names)
    if tests["has_check"]:
        names["check"](names["candidate"])
    for name in tests["functions"]:
        names[name]()
    for name in tests["cases"]:
        run_case(names[name])
    return link.calls > 0


def module_named(name: str) -> dict[str, Any]:
    """The names of a new module, which can be imported."""
    sys.modules[name] = types.ModuleType(name)
    return sys.modules[name].__dict__


def run_each(text: str, names: dict[str, Any]) -> None:
    """Runs the statements of the row's code one by one, without those that fail."""
    for node in ast.parse(text).body:
        try:
            exec(compile(ast.Module([node], []), "given.py", "exec"), names)
        except Exception:  # it asks for what is not there
            continue


def classes_of(names: dict[str, Any]) -> dict[str, type]:
    """The classes that a module defines itself, whose objects are made of their attributes."""
    others = (BaseException, tuple, int, float, str, bytes, enum.Enum)
    return {n: each for n, each in defined_in(names).items() if not issubclass(each, others)}


def defined_in(names: dict[str, Any]) -> dict[str, type]:
    """The classes that a module defines itself."""
    classes = {name: each for name, each in names.items() if isinstance(each, type)}
    return {n: each for n, each in classes.items() if each.__module__ == names["__name__"]}


def run_case(case: type) -> None:
    """Runs a class of unittest's. AssertionError where a test fails or there is none."""
    import unittest

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    if not result.wasSuccessful() or not result.testsRun or result.skipped:
        raise AssertionError(case.__name__)
