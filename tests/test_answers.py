"""The mathematics reward against golds with right and wrong answers; bench/answers.py runs all."""

import json
import sys
from pathlib import Path

import pytest

from unslothrl.rewards import maths

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))

import answers_made

WRITTEN = [
    json.loads(line) for line in (BENCH / "answers" / "written.jsonl").read_text().splitlines()
]
MADE = list(answers_made.cases(share=0.03))


@pytest.mark.parametrize("case", WRITTEN, ids=[case["gold"] for case in WRITTEN])
def test_written_answers(case):
    accepted = [one for one in case["wrong"] if maths.same(one, case["gold"])]
    refused = [one for one in case["right"] if not maths.same(one, case["gold"])]
    assert (accepted, refused) == ([], [])


@pytest.mark.parametrize("kind", list(answers_made.KINDS))
def test_made_answers(kind):
    cases = [case for case in MADE if case["kind"] == kind]
    assert cases and all(case["right"] and len(case["wrong"]) > 3 for case in cases)
    for case in cases:
        accepted = [one for one in case["wrong"] if maths.same(one, case["gold"])]
        refused = [one for one in case["right"] if not maths.same(one, case["gold"])]
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
    assert maths.same_list(boxes, gold) is expected
