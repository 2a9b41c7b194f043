"""Whether two texts say the same."""

from unslothrl.rewards.maths.kinds import Answer, Text, Value


def same_text(answer: Answer, gold: Answer) -> bool:
    """Words without regard to case and spaces; a letter that is not marked as text has its case."""
    a, b = text_of(answer), text_of(gold)
    if a is None or b is None:
        return False
    if isinstance(gold, Text) or len(b) > 2:
        return a.casefold() == b.casefold()
    return a == b


def text_of(answer: Answer) -> str | None:
    """A text, a letter or a product of letters, without spaces; "(B)" as "B"."""
    if isinstance(answer, Text):
        text = "".join(answer.words.split())
        return text[1:-1] if len(text) == 3 and text[0] == "(" and text[2] == ")" else text
    if isinstance(answer, Value) and not answer.unit and answer.tree[0] == "symbol":
        return answer.tree[1]
    return None
