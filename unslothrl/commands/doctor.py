"""`unslothrl doctor`: what is wrong with this machine, one line for each check."""

import json
import sys
from dataclasses import asdict
from typing import TextIO

from unslothrl.doctor import Check, examine, worst
from unslothrl.doctor.check import PROBLEM, STATUSES
from unslothrl.redaction import redacted

FAILED = 1  # the exit code where there is a problem


def doctor(self_test: bool, as_json: bool, out: TextIO | None = None) -> int:
    """Prints what is found as it is found. -> the exit code"""
    out = out or sys.stdout
    found: list[Check] = []
    for check in examine(self_test):
        found.append(check)
        if not as_json:
            print(redacted(check.line()), file=out, flush=True)
    if as_json:
        print(redacted(json.dumps(as_object(found))), file=out)
    else:
        print(summary(found), file=out)
    return FAILED if worst(found) == PROBLEM else 0


def as_object(checks: list[Check]) -> dict:
    """{"status": the worst of all, "checks": [...]}"""
    return {"status": worst(checks), "checks": [asdict(check) for check in checks]}


def summary(checks: list[Check]) -> str:
    counts = {status: sum(check.status == status for check in checks) for status in STATUSES}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)
