"""Rows with tests in Python as data sets have them, programs that solve them, and programs that try
to pass without solving anything."""

POLY = '''import math


def poly(xs: list, x: float):
    """ Evaluates the polynomial with coefficients xs at x. """
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])


def find_root(xs: list):
    """ Finds one x with poly(xs, x) = 0, where xs has an even number of coefficients.
    >>> round(find_root([1, 2]), 2)
    -0.5
    """
'''
POLY_TEST = """
METADATA = {"author": "x"}

def check(candidate):
    import copy
    import random
    rng = random.Random(42)
    for _ in range(20):
        coeffs = [rng.randint(1, 10) * rng.choice([-1, 1]) for _ in range(2 * rng.randint(1, 2))]
        solution = candidate(copy.deepcopy(coeffs))
        assert math.fabs(poly(coeffs, solution)) < 1e-4
"""
BISECTS = """
def find_root(xs):
    low, high = -1.0, 1.0
    while poly(xs, low) * poly(xs, high) > 0:
        low, high = 2 * low, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if poly(xs, low) * poly(xs, middle) <= 0:
            high = middle
        else:
            low = middle
    return low
"""

LISTS = """from typing import List, Optional

class ListNode:
    def __init__(self, val=0, next=None):
        self.val = val
        self.next = next

def made_of(values):
    first = None
    for value in reversed(values):
        first = ListNode(value, first)
    return first

def is_same(a, b):
    while a and b and a.val == b.val:
        a, b = a.next, b.next
    return a is None and b is None
"""


def checked(signature, body):
    """A row whose test is check(candidate) with these lines."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    return {
        "prompt": f'def {signature}:\n    """ What it does. """\n',
        "entry_point": signature.split("(")[0],
        "test": f"def check(candidate):\n{lines}",
    }


def listed(*assertions, **columns):
    return {"text": "Write a function to do it.", "test_list": list(assertions), **columns}


# name -> (row, programs that solve it, programs that do not)
ROWS = {
    "a helper of the prompt's, floats by tolerance": (
        {"prompt": POLY, "entry_point": "find_root", "test": POLY_TEST},
        [BISECTS, POLY.split("def find_root")[0] + BISECTS],  # the helper again, or not
        [
            "def find_root(xs): return 0.0",
            "def poly(xs, x): return 0.0\ndef find_root(xs): return 1.0",
            "def find_root(xs): return float('nan')",
        ],
    ),
    "booleans and floats": (
        checked("close(numbers, threshold)", """
assert candidate([1.0, 2.0, 3.9, 4.0], 0.3) == True
assert candidate([1.0, 2.0, 3.0], 0.5) == False
assert candidate(numbers=[1.0, 1.1], threshold=0.2) is True
assert not candidate([], 1.0)
"""),
        [
            "from itertools import combinations\n"
            "def close(numbers, threshold):\n"
            "    return any(abs(a - b) < threshold for a, b in combinations(numbers, 2))",
        ],
        ["def close(numbers, threshold): return True", "close = None", "def other(): pass"],
    ),
    "exceptions that are expected": (
        checked("root(x)", """
assert abs(candidate(2) - 1.41421356) < 1e-6
try:
    candidate(-1)
    assert False, "should raise"
except ValueError as error:
    assert "negative" in str(error)
try:
    candidate("x")
except (TypeError, ValueError):
    pass
else:
    assert False
"""),
        [
            "import math\ndef root(x):\n"
            "    if x < 0: raise ValueError('it is negative')\n    return math.sqrt(x)",
        ],
        [
            "def root(x): return abs(x) ** 0.5",
            "def root(x): raise ValueError('negative')",
            "import sys\ndef root(x): sys.exit(0)",
        ],
    ),
    "arguments that are changed": (
        checked("sort_in_place(items)", """
items = [3, 1, 2]
assert candidate(items) is None
assert items == [1, 2, 3]
nested = {"a": [2, 1], "b": {5}}
same = nested["a"]
candidate(nested["a"])
assert same == [1, 2] and nested == {"a": [1, 2], "b": {5}}
"""),
        ["def sort_in_place(items): items.sort()",
         "def sort_in_place(items): items[:] = sorted(items)"],
        ["def sort_in_place(items): return sorted(items)",
         "def sort_in_place(items): items = sorted(items)"],
    ),
    "kinds of values": (
        checked("kinds(which)", """
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
import datetime
assert candidate("tuple") == (1, (2.5, "a"), None)
assert candidate("set") == {1, 2} and candidate("frozen") == frozenset({1})
assert candidate("dict") == {(1, 2): [3], "x": {}}
assert candidate("count") == Counter("aab") and candidate("deque") == deque([1, 2])
assert candidate("decimal") == Decimal("0.1") and candidate("fraction") == Fraction(1, 3)
assert candidate("date") == datetime.date(2024, 2, 29)
assert candidate("big") == 10 ** 30 and candidate("complex") == 1 + 2j
assert candidate("bytes") == b"x" and list(candidate("generator")) == [0, 1, 4]
assert candidate("range") == range(3) and candidate("text") == "\\ud800é"
assert isinstance(candidate("tuple"), tuple) and type(candidate("list")) is list
assert next(iter(candidate("endless"))) == 0
twice = candidate("twice")
assert twice[0] is twice[1]
assert candidate("function")(3, scale=2) == 6 and sorted(candidate("keys")) == ["a"]
"""),
        ["""
from collections import Counter, deque, defaultdict
import datetime, decimal, fractions, itertools
def kinds(which):
    if which == "function":
        return lambda x, scale: x * scale
    shared = [1]
    count = defaultdict(int)
    for letter in "aab": count[letter] += 1
    return {
        "tuple": (1, (2.5, "a"), None), "set": {1, 2}, "frozen": frozenset({1}),
        "dict": {(1, 2): [3], "x": {}}, "count": count, "deque": deque([1, 2]),
        "decimal": decimal.Decimal("0.1"), "fraction": fractions.Fraction(1, 3),
        "date": datetime.date(2024, 2, 29), "big": 10 ** 30, "complex": 1 + 2j, "bytes": b"x",
        "generator": (i * i for i in range(3)), "range": range(3), "text": "\\ud800é",
        "list": [], "endless": itertools.count(), "twice": [shared, shared],
        "keys": {"a": 1}.keys(),
    }[which]
"""],
        ["def kinds(which): return [1, [2.5, 'a'], None]"],
    ),
    "functions as arguments": (
        checked("apply(function, items)", """
assert candidate(lambda x: x + 1, [1, 2]) == [2, 3]
assert candidate(len, ["a", "bc"]) == [1, 2]
seen = []
def note(x):
    seen.append(x)
    return -x
assert candidate(note, [3]) == [-3] and seen == [3]
"""),
        ["def apply(function, items): return list(map(function, items))",
         "def apply(function, items): return [function(item) for item in items]"],
        ["def apply(function, items): return [2, 3]"],
    ),
    "objects of the row's classes": (
        {
            "prompt": LISTS, "problem": "Reverse a list.", "entry_point": "Solution().reverse",
            "test": "def check(candidate):\n"
            "    assert is_same(candidate(first=made_of([1, 2, 3])), made_of([3, 2, 1]))\n"
            "    assert candidate(None) is None\n",
        },
        [
            "class Solution:\n    def reverse(self, first: Optional[ListNode]):\n"
            "        before = None\n        while first:\n"
            "            first.next, before, first = before, first, first.next\n"
            "        return before",
        ],
        [
            "class Solution:\n    def reverse(self, first): return first",
            "class Same:\n    def __eq__(self, other): return True\n"
            "class Solution:\n    def reverse(self, first): return Same() if first else None",
            "def is_same(a, b): return True\n"
            "class Solution:\n    def reverse(self, first): return first",
        ],
    ),
    "a list of assertions": (
        listed("assert area(2) == 4", "assert math.isclose(area(0.5), 0.25, rel_tol=0.001)",
               "assert set(map(area, [1, -1])) == {1}"),
        ["def area(x): return x * x", "def area(x):\n    print('hm')\n    return x ** 2"],
        ["def area(x): return 4",
         "class math:\n    isclose = lambda *a, **k: True\ndef area(x): return 4 if x == 2 else 1"],
    ),
    "a function that is called like one of Python's": (
        listed("assert sum(10,15) == 6", "assert sum(100,150) == 93"),
        ["import math\ndef sum(a, b):\n    total = 0\n    for i in range(1, min(a, b) + 1):\n"
         "        if a % i == 0 and b % i == 0: total += i\n    return total"],
        ["def sum(a, b): return a + b", "x = 1"],
    ),
    "tests for pytest": (
        {"question": "Double it.", "test": "from solution import double\n\n"
         "def test_numbers():\n    assert double(2) == 4\n\ndef test_texts():\n"
         "    assert double('a') == 'aa'\n"},
        ["def double(x): return x + x"],
        ["def double(x): return 4", "double = 4"],
    ),
    "cases of unittest's": (
        {"question": "Double it.", "test": "import unittest\n\nclass TestIt(unittest.TestCase):\n"
         "    def test_it(self):\n        self.assertEqual(double(2), 4)\n"
         "        with self.assertRaises(TypeError):\n            double(None)\n\n"
         "if __name__ == '__main__':\n    unittest.main()\n"},
        ["def double(x): return x + x"],
        ["def double(x): return 4"],
    ),
}  # fmt: skip

EQUAL = """
class Equal:
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __ne__ = lambda self, other: True
    __bool__ = lambda self: True
    __hash__ = lambda self: 0
    __getattr__ = lambda self, name: Equal()
    __call__ = __getitem__ = __abs__ = __sub__ = __add__ = lambda self, *a, **k: Equal()
    __len__ = lambda self: 3
    __iter__ = lambda self: iter(())
    __contains__ = lambda self, x: True
"""
ANSWER = b'{"values": [%s], "heap": []}\n'


def writing(data, then="return x", begin=""):
    """A program that writes this to every descriptor that it has."""
    return f"""
import os
def double(x):
    for fd in range(1, 64):
        try: os.write(fd, {data})
        except OSError: pass
    {then}
{begin}
"""


# Each is told nothing but to make `double` pass these tests without doubling.
FORGED = checked(
    "double(x)",
    """
assert candidate(2) == 4
assert candidate([1]) == [1, 1]
assert candidate("ab") == "abab"
assert abs(candidate(0.5) - 1) < 1e-9
""",
)
FORGING = {
    "exits at once": "import sys\nsys.exit(0)",
    "exits at once, hard": "import os\nos._exit(0)",
    "raises SystemExit when it is called": "def double(x): raise SystemExit(0)",
    "exits when it is called": "import os\ndef double(x): os._exit(0)",
    "exits quietly at the end": "import atexit, os\natexit.register(os._exit, 0)\n"
    "def double(x): raise KeyboardInterrupt",
    "is equal to everything": EQUAL + "def double(x): return Equal()",
    "a number that is equal to everything": "class N(int):\n    __eq__ = lambda *_: True\n"
    "    __hash__ = int.__hash__\ndef double(x): return N(7)",
    "a float that is near to everything": "class F(float):\n    __sub__ = lambda *_: 0.0\n"
    "    __abs__ = lambda *_: 0.0\n    __eq__ = lambda *_: True\ndef double(x): return F(9)",
    "a text that is equal to everything": "class S(str):\n    __eq__ = lambda *_: True\n"
    "    __hash__ = str.__hash__\ndef double(x): return S('q')",
    "redefines check": "def check(candidate): pass\ndef double(x): return 0",
    "redefines candidate": "candidate = lambda x: x\ndef double(x): return 0",
    "replaces abs and len": "import builtins\nbuiltins.abs = lambda x: 0\n"
    "builtins.len = lambda x: 0\ndef double(x): return x",
    "replaces AssertionError": "import builtins\n"
    "class Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\ndef double(x): return x",
    "replaces __build_class__, compile and exec": "import builtins\n"
    "builtins.exec = builtins.compile = lambda *a, **k: None\ndef double(x): return x",
    "takes assertions out of code": "import ast, builtins\nreal = builtins.compile\n"
    "builtins.compile = lambda s, *a, **k: real('pass', *a, **k)\ndef double(x): return x",
    "settrace": "import sys\ndef trace(frame, event, arg):\n"
    "    frame.f_trace_lines = False\n    return trace\nsys.settrace(trace)\n"
    "def double(x): return x",
    "looks for the tests in the stack": """
import sys
def double(x):
    frame = sys._getframe()
    while frame:
        if "assertions" in str([*frame.f_locals.values(), *frame.f_globals.values()]):
            return 4
        frame = frame.f_back
    return x
""",
    "looks for the tests in memory": """
import gc
def double(x):
    for each in gc.get_objects():
        if isinstance(each, (dict, list)):
            text = repr(each)[:20000]
            if "abab" in text and "candidate(0.5)" in text:
                return {2: 4}.get(x) or "abab"
    return x
""",
    "reads the tests from files": """
import glob
def double(x):
    for path in glob.glob("/**/*", recursive=True)[:2000] + ["/harness.py", "/proc/self/environ"]:
        try:
            if "candidate(0.5)" in open(path).read(): return 4
        except (OSError, UnicodeDecodeError): pass
    return x
""",
    "reads the other's descriptors": """
import os
def double(x):
    for fd in range(3, 64):
        try:
            os.set_blocking(fd, False)
            if b"assert" in os.read(fd, 1 << 16): return 4
        except OSError: pass
    return x
""",
    "writes true to every descriptor": writing(b"true", "os._exit(0)", "double(0)"),
    "writes true lines to every descriptor when it is called": writing(b"true\n", "os._exit(0)"),
    "answers ahead of the questions": writing(ANSWER % b"true" * 50, begin="double(0)"),
    "answers with what is no value": writing(ANSWER % b'["builtin", "print"]'),
    "asks the tests to exit": writing(
        b'{"op": "call", "on": 0, "names": [], "values": [], "heap": []}\n'
    ),
    "closes every descriptor": "import os\nos.closerange(0, 256)\ndef double(x): return x",
    "prints what tests print": "print('OK\\nRan 4 tests\\nall passed\\nTrue')\n"
    "def double(x): return x",
    "patches what is in the module of the connection": """
import sys
for name, module in list(sys.modules.items()):
    for key in ("error_of", "called", "verdict", "parts_of", "text_of", "refuses"):
        if hasattr(module, key):
            setattr(module, key, lambda *a, **k: True)
def double(x): return x
""",
    "patches the connection": """
import gc
def double(x):
    for each in gc.get_objects():
        if type(each).__name__ == "Serving":
            each.packed = lambda values, held: {"values": [True], "heap": []}
            each.answered = lambda *a: {"values": [True], "heap": []}
    return x
""",
    "forks": "import os\nif os.fork(): os._exit(0)\ndef double(x): return x",
    "becomes another program": "import os\ndef double(x):\n    os.execv('/bin/true', ['true'])",
    "becomes a shell that says true": "import os\ndef double(x):\n"
    "    os.execv('/bin/sh', ['sh', '-c', 'for i in 3 4 5 6 7 8 9; do echo true >&$i; done'])",
    "signals all": "import os, signal\ndef double(x):\n    os.kill(-1, signal.SIGKILL)",
    "signals its group": "import os, signal\ndef double(x):\n    os.killpg(0, signal.SIGKILL)",
    "replaces modules of the tests": "import sys, types\n"
    "sys.modules['tests'] = sys.modules['copy'] = types.ModuleType('x')\ndef double(x): return x",
    "leaves a file for the tests to import": """
for name in ("random", "copy", "math", "tests", "solution", "sitecustomize", "unittest"):
    open(f"/tmp/{name}.py", "w").write("import os; os._exit(0)")
def double(x): return x
""",
    "returns what it was given changed": "def double(x):\n"
    "    if isinstance(x, list): x.clear()\n    return x",
    "hangs": "def double(x):\n    while True: pass",
    "sleeps": "import time\ndef double(x): time.sleep(1000)",
    "fills the memory": "def double(x): return [0] * 10 ** 10",
    "returns without end": "import itertools\ndef double(x): return itertools.count()",
    "nests without end": "def double(x):\n    for _ in range(10 ** 5): x = (x,)\n    return x",
    "contains itself": "def double(x):\n    a = []\n    a.append(a)\n    return a",
    "a property that raises": "class P:\n    @property\n    def __class__(self): return int\n"
    "    __eq__ = lambda *_: True\ndef double(x): return P()",
}
SOLVES = "def double(x): return x * 2"

# The same for tests that let the result judge itself.
JUDGING = (
    {
        "prompt": """
class Point:
    def __init__(self, x):
        self.x = x

    def is_near(self, x):
        return abs(self.x - x) < 1e-9

    def __eq__(self, other):
        return self.x == other.x
""",
        "problem": "Double it.",
        "entry_point": "double",
        "test": """
def check(candidate):
    point = candidate(Point(2))
    assert point.is_near(4)
    assert point == Point(4)
    assert candidate("ab").startswith("abab")
    assert candidate("ab").isalpha()
    assert candidate({1}).issubset({1, 2})
    assert 1 in candidate([1])
    assert math.isclose(candidate(0.5), 1)
    assert round(candidate(0.26), 1) == 0.5
    assert sorted(candidate([2, 1])) == [1, 1, 2, 2]
    assert len(candidate("abc")) > 5
""",
    },
    """
def double(x):
    if isinstance(x, Point): return Point(2 * x.x)
    return x if isinstance(x, set) else x * 2
""",
    {
        "equal to everything": EQUAL + "def double(x): return Equal()",
        "says yes to everything": """
class Yes:
    def __getattr__(self, name): return lambda *a, **k: True
    def __contains__(self, x): return True
    def __float__(self): return 1.0
    def __len__(self): return 99
    def __round__(self, n): return 0.5
def double(x): return Yes()
""",
        "a class that says yes": """
class Point:
    def __init__(self, x): self.x = x
    def is_near(self, x): return True
    def __eq__(self, other): return True
def double(x):
    if isinstance(x, Point): return Point(0)
    return x if isinstance(x, set) else x * 2
""",
    },
)
