"""Golds with right and wrong answers; bench/measure.py runs all of them."""

import itertools
import json
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))

import made

from answercheck import same, same_list

WRITTEN = [json.loads(line) for line in (BENCH / "written.jsonl").read_text().splitlines()]
MADE = list(made.cases(share=0.03))


@pytest.mark.parametrize("case", WRITTEN, ids=[case["gold"] for case in WRITTEN])
def test_written_answers(case):
    accepted = [one for one in case["wrong"] if same(one, case["gold"])]
    refused = [one for one in case["right"] if not same(one, case["gold"])]
    assert (accepted, refused) == ([], [])


@pytest.mark.parametrize("kind", list(made.KINDS))
def test_made_answers(kind):
    cases = [case for case in MADE if case["kind"] == kind]
    assert cases and all(case["right"] and len(case["wrong"]) > 3 for case in cases)
    for case in cases:
        accepted = [one for one in case["wrong"] if same(one, case["gold"])]
        refused = [one for one in case["right"] if not same(one, case["gold"])]
        assert (accepted, refused) == ([], []), case["gold"]


@pytest.mark.parametrize(
    ("boxes", "gold", "expected"),
    [
        (("1", "2", "2"), "1, 2, 2", True),
        (("1", "2"), "1, 2, 2", False),
        (("1", "1", "2"), "1, 2, 2", False),
        (("1", "2", "1", "2"), "1, 2", True),  # boxed again at the end
        (("1", "2", "2"), "\\{1, 2\\}", True),
    ],
)
def test_boxes_that_are_a_list_together(boxes, gold, expected):
    assert same_list(boxes, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (r"\frac{1}{12}", r"\frac{11}{2}", False),
        ("1/12", "11/2", False),
        ("1,2", "12", False),
        ("1,234", "1234", True),
        ("0.5", r"\frac{1}{2}", True),
        (r"\frac{2}{4}", "1/2", True),
        ("x=5", "5", True),
        (r"50\%", "0.5", True),
        ("(1,2)", "(2,1)", False),
        (r"\text{Evelyn}", "Evelyn", True),
        ("", "0", False),
        ("9" * 2000, "1", False),
        ("\x00", "1", False),
        ("\ud800", "1", False),
        ("{{{", "1", False),
        ("9**9**9**9", "1", False),
        ("52_8", "52_{8}", True),
        ("52_9", "52_8", False),
        ("52", "52_8", False),
        (r"15\mbox{ cm}^3", r"15\mbox{ cm}^2", False),
        (r"15\text{ cm}^2", r"15\mbox{cm}^{2}", True),
        ("15", r"15\text{ cm}^2", True),
        (".0000673", ".0000672", False),
        ("3.141593", "3.14159265", True),
        ("3.1416", "3.14159265", False),
        ("1000000.5", "1000000", False),
        ("10000000000000000000001", "10000000000000000000000", False),
        ("-0.50", "-.5", True),
        ("5.", "5", True),
        ("0", "0.0000001", False),
    ],
)
def test_same_answers(answer, gold, expected):
    assert same(answer, gold) is expected


ZEROS = [
    "2\\cos 90^\\circ",
    "-\\sin\\pi",
    "3((\\sqrt2)^2-2)",
    "\\frac{\\sin\\pi}{2}",
    "2(e^{\\ln 2}-2)",
]
PLACES = [
    "{}",
    "({0},{0})",
    "{0},{0}",
    "[-4,{})",
    "\\{{{}\\}}",
    "x>{}",
    "x={}",
    "y=2x+3+({})",
    "{}i",
]
PLACES += ["5+({})", "\\begin{{pmatrix}}{0}\\\\{0}\\end{{pmatrix}}", "{0}<x<1+({0})"]
PAIRS = [*zip(PLACES, itertools.cycle(ZEROS)), *itertools.product(["{}", "({0},{0})"], ZEROS)]
ROUNDABOUT = {place.format(zero): place.format("0") for place, zero in PAIRS}
ROUNDABOUT |= {"6\\cos 180^\\circ+6i\\sin 180^\\circ": "-6", "6(\\cos\\pi+i\\sin\\pi)": "-6"}
GOLDS = [case["gold"] for case in WRITTEN]


@pytest.mark.parametrize("answer", ROUNDABOUT)
def test_a_zero_that_is_not_computed_exactly_equals_nothing_but_zero(answer):
    plain = ROUNDABOUT[answer]
    found = [gold for gold in GOLDS if same(answer, gold) and not same(plain, gold)]
    assert found == []


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        *((zero, "0", True) for zero in ZEROS),
        *(("17", f"3+{zero}", False) for zero in ZEROS),
        *((f"3+{zero}", "3", True) for zero in ZEROS),
        ("(2\\cos 90^\\circ,1)", "(0,1)", True),
        ("6(\\cos\\pi+i\\sin\\pi)", "-6", True),
        ("6(\\cos\\pi+i\\sin\\pi)", "17", False),
        ("5\\tanh(10000)", "5", False),
        ("5\\tanh(100)", "5", False),
        ("5+\\operatorname{sech}(10000)", "5", False),
        ("\\tanh 2", "\\frac{e^4-1}{e^4+1}", True),
        ("\\frac{\\sin\\pi}{\\sin 2\\pi}", "-\\frac12", False),
        ("\\frac{1}{e^{-300}}", "e^{300}", True),
        ("\\frac{1}{\\sin(10^{-50})}", "\\csc(10^{-50})", True),
        ("\\frac{5}{\\sqrt{1.21}-\\sqrt{1.44}}", "-50", True),
    ],
)
def test_what_is_near_to_zero(answer, gold, expected):
    assert same(answer, gold) is expected


@given(st.decimals(-9999, 9999, places=4), st.sampled_from(["0", "1", "-0.0001", "0.01", "10"]))
def test_decimals_are_compared_exactly(number, more):
    other = number + Decimal(more)
    assert same(str(other), str(number)) is (other == number)
    assert same(f"x={other}", str(number)) is (other == number)  # by the parser
