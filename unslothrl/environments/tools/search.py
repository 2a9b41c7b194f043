"""Search in passages of the user's, `--tools search:FILE`: see `corpus`.

    score(query, passage) = sum over the query's words w of
        ln(1 + (N - n + 0.5) / (n + 0.5)) f / (f + k1 (1 - b + b |passage| / mean |passage|))

f: how often w stands in the passage, n: in how many of N passages, |passage|: its words, the
title's included; k1 = 1.5, b = 0.75. This is BM25 in Lucene's exact form (Kamphuis, de Vries,
Boytsov and Lin, "Which BM25 Do You Mean?", ECIR 2020), as bm25s computes it. A word is a run of
letters and digits in lower case and in Unicode's form NFKC, so that one way to write an accent
finds the other; of Chinese and Japanese, a character. There are no stop words.
"""

import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from unslothrl.environments.base import ToolError

if "numba" in sys.modules:
    import bm25s
else:  # bm25s would load it, a second and 80 MB for what is not used here
    sys.modules["numba"] = None  # type: ignore[assignment]
    import bm25s

    del sys.modules["numba"]
import numpy as np

from unslothrl.environments.corpus import Passage, passages

MOST_RESULTS, MOST_QUERY = 10, 1000  # passages, characters
NOTHING = "nothing found: no passage has any of these words"
HAN = "\u3040-\u30ff\u3400-\u9fff"  # written without spaces
WORDS = f"[{HAN}]|[^\\W{HAN}]+"


class Index:
    """Passages by their words: built once, then only read."""

    def __init__(self, path: str):
        """Over a file or folder. UserError for what is none."""
        self.passages, _ = passages(path)
        self.bm25 = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        texts = (f"{each.title}\n{each.text}" for each in self.passages)
        self.bm25.index(words(texts), show_progress=False)

    def best(self, query: str, most: int) -> list[Passage]:
        """The passages of the highest scores above 0, the first of equal ones first."""
        (asked,) = words([query], return_ids=False)
        if not asked:
            return []
        scores = self.bm25.get_scores(asked)
        least = np.partition(scores, -most)[-most] if most < len(scores) else 0
        found = np.flatnonzero((scores >= least) & (scores > 0))
        order = np.argsort(-scores[found], kind="stable")[:most]
        return [self.passages[index] for index in found[order]]


def words(texts: Iterable[str], **options: Any) -> Any:
    composed = (unicodedata.normalize("NFKC", text) for text in texts)
    return bm25s.tokenize(
        composed, token_pattern=WORDS, stopwords=[], show_progress=False, **options
    )


def tools(path: str) -> list[Callable]:
    """The tool over a file or folder. Raises UserError for what is none."""
    index = Index(path)

    def search(query: str, k: int = 3) -> str:
        """
        Searches for passages that have the words of a query. Returns the best of them.

        Args:
            query: The words to look for.
            k: How many passages to return, 1 to 10.
        """
        if not query.strip():
            raise ToolError("error: search: the query must be a text of a few words")
        if len(query) > MOST_QUERY:
            raise ToolError(f"error: search: the query is longer than {MOST_QUERY:,} characters")
        if not 1 <= k <= MOST_RESULTS:
            raise ToolError(f"error: search: k must be a whole number from 1 to {MOST_RESULTS}")
        found = index.best(query, k)
        shown = [f"[{number}] {each.name}\n{each.text}" for number, each in enumerate(found, 1)]
        return "\n\n".join(shown) or NOTHING

    return [search]
