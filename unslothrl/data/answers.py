"""Where a text states its answer: a completion, or the worked solution of a data set.

tagged  between the last `<answer>` and the `</answer>` after it
boxed   in the last `\\boxed{...}` whose braces close, by counting them; the reward `boxed` says
        when several boxes are one answer

As text, answers are compared after trimming, with the commas of thousands taken out ("1,000" is
"1000"; "1,2" is not "12").
"""

import re

TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # of the think-and-answer form
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escape takes the character after it along
_THOUSANDS = re.compile(r"([-+]?\$?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")


def normalise(answer: str) -> str:
    """The answer as it is compared: trimmed, "1,234" as "1234"."""
    answer = answer.strip()
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


def tagged(text: str) -> str | None:
    """None without both tags: a completion that was cut off has no answer."""
    _, opening, rest = text.rpartition("<answer>")
    answer, closing, _ = rest.partition("</answer>")
    return answer.strip() if opening and closing else None


def boxed(text: str) -> str | None:
    """The content of the last box. None without a box that closes. Escaped braces do not count."""
    contents = boxes(text)
    return contents[-1] if contents else None


def boxes(text: str) -> list[str]:
    """The content of each box that closes, in order; of nested boxes only the innermost's."""
    open_braces: list[int] = []
    spans: list[tuple[int, int]] = []
    last = -1
    for brace in _BRACES.finditer(text):
        at = brace.start()
        if brace[0] == "{":
            open_braces.append(at)
        elif brace[0] == "}" and open_braces:
            opened = open_braces.pop()
            if opened > last and text.endswith("\\boxed", 0, opened):
                last = opened
                spans.append((opened, at))
    return [text[opened + 1 : end].strip() for opened, end in spans]
