"""Runs programs that come as lines, for tests that need another user than the tests' own.

[level, text, wall_s]  ->  [stopped, stdout, seconds]
"""

import json
import sys

from unslothrl.sandbox import Limits, Program, levels, run

for line in sys.stdin:
    level, text, wall_s = json.loads(line)
    if level == "is root":
        print(json.dumps(levels.is_root()), flush=True)
        continue
    limits = Limits(cpu_s=wall_s, wall_s=wall_s, memory_mb=512, output_kb=256)
    outcome = run(Program(text, stdin="41\n"), limits, level)
    print(json.dumps([outcome.stopped, outcome.stdout, outcome.seconds]), flush=True)
