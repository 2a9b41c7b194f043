"""Where a completion says its answer.

tagged  between the last `<answer>` and the `</answer>` after it
boxed   in the last `\\boxed{...}` whose braces close, by counting them

As text, answers are compared after trimming, with the commas of thousands taken out ("1,000" is
"1000"; "1,2" is not "12").
"""

import re

_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escape takes the character after it along
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
    """None without a box that closes. Escaped braces do not count."""
    open_braces: list[int] = []
    first, end = -1, -1
    for brace in _BRACES.finditer(completion):
        at = brace.start()
        if brace[0] == "{":
            open_braces.append(at)
        elif brace[0] == "}" and open_braces:
            opened = open_braces.pop()
            if opened > first and completion.endswith("\\boxed", 0, opened):
                first, end = opened, at
    return None if first < 0 else completion[first + 1 : end].strip()
