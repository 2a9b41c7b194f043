"""Shortens a recorded terminal, so that a picture of it stays small.

docs/images/train.svg is `make train`, 14 times as fast, with asciinema and svg-term-cli:

asciinema rec --cols 100 --rows 30 --command 'echo "\\$ make train"; make train' train.cast
python bench/recording.py train.cast short.cast
npx svg-term-cli --in short.cast --out docs/images/train.svg --no-cursor --window
"""

import json
import sys
from pathlib import Path

SPEED = 14.0
FRAME_S = 0.5
LAST_S = 6.0  # for which the last frame stands


def shortened(lines: list[str]) -> list[str]:
    """An asciicast of version 2, whose events are [seconds, kind, text]."""
    header, *events = map(json.loads, lines)
    frames: list[list] = []
    for seconds, kind, text in events:
        start = seconds / SPEED // FRAME_S * FRAME_S
        if frames and frames[-1][0] == start:
            frames[-1][2] += text
        else:
            frames.append([start, kind, text])
    frames.append([frames[-1][0] + LAST_S, "o", " "])
    kept = {name: header[name] for name in ("version", "width", "height")}
    return [json.dumps(each) for each in (kept, *frames)]


if __name__ == "__main__":
    cast, output = map(Path, sys.argv[1:])
    output.write_text("\n".join(shortened(cast.read_text().splitlines())) + "\n")
