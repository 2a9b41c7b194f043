"""Where a completion says its answer.

tagged  between the last `<answer>` and the `</answer>` after it
boxed   in the last `\\boxed{...}` whose braces close, by counting them; `checked` says when several
        boxes are one answer

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
    """What is in the last box. None without a box that closes. Escaped braces do not count."""
    found = boxes(completion)
    return found[-1] if found else None


def boxes(completion: str) -> list[str]:
    """What is in each box that closes, but for boxes with a box inside, in order."""
    open_braces: list[int] = []
    found: list[tuple[int, int]] = []
    last = -1
    for brace in _BRACES.finditer(completion):
        at = brace.start()
        if brace[0] == "{":
            open_braces.append(at)
        elif brace[0] == "}" and open_braces:
            opened = open_braces.pop()
            if opened > last and completion.endswith("\\boxed", 0, opened):
                last = opened
                found.append((opened, at))
    return [completion[opened + 1 : end].strip() for opened, end in found]
