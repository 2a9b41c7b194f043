"""Where a completion says its answer.

tagged  between the last `<answer>` and the `</answer>` after it
boxed   in the last `\\boxed{...}` whose braces close, by counting them

As text, answers are compared after trimming, with the commas of thousands taken out ("1,000" is
"1000"; "1,2" is not "12").
"""

import re

_THOUSANDS = re.compile(r"([-+]?\$?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")


def normalise(answer: str) -> str:
    """The answer as it is compared: trimmed, "1,234" as "1234"."""
    answer = answer.strip()
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


def tagged(completion: str) -> str | None:
    """None without both tags: a completion that was cut off has no answer."""
    _, opening, rest = completion.rpartition("<answer>")
    answer, closing, _ = rest.partition("</answer>")
    return answer.strip() if opening and closing else None


def boxed(completion: str) -> str | None:
    """None without a box that closes."""
    start = completion.rfind("\\boxed{")
    while start >= 0:
        first = start + len("\\boxed{")
        end = closing_brace(completion, first)
        if end is not None:
            return completion[first:end].strip()
        start = completion.rfind("\\boxed{", 0, start)
    return None


def closing_brace(text: str, start: int) -> int | None:
    """Where the brace that was opened before `start` closes; escaped braces do not count."""
    depth, escaped = 1, False
    for index in range(start, len(text)):
        character = text[index]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return index
    return None
