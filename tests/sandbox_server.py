"""Runs programs that come as lines, for tests that need another user than the tests' own: for
[level, text, wall_s] it answers [stopped, stdout, seconds].

Whatever a program leaves behind becomes a child of this process, so that a test can find it.
"""

import ctypes
import json
import sys

from unslothrl.sandbox import Limits, Program, run

PR_SET_CHILD_SUBREAPER = 36

ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
for line in sys.stdin:
    level, text, wall_s = json.loads(line)
    limits = Limits(cpu_s=wall_s, wall_s=wall_s, memory_mb=512, output_kb=256)
    try:
        outcome = run(Program(text, stdin="41\n"), limits, level)
        answer = [outcome.stopped, outcome.stdout, outcome.seconds]
    except OSError as error:
        answer = [f"sandbox failed: {error}", "", 0.0]
    print(json.dumps(answer), flush=True)
