"""A request in flight: what has been drawn for it, under which versions, and what is left."""

import itertools
from dataclasses import dataclass, replace

import numpy as np

from unslothrl.records import Completion, Request, seed_of

NUMBERS = itertools.count(1)
"""Of a process's loads. A version's own number will not do: a learner that restarts publishes
numbers again, with other weights, while completions are in flight under the first ones."""

NO_LOAD = 0  # before any version was loaded


@dataclass
class InFlight:
    """A request in one or several segments: it begins another where it goes on under a newer
    version, which computes all its tokens so far again, as a part of the prompt."""

    request: Request
    load: int  # the engine's load that it is drawn under now
    version: int  # that was loaded by it
    segment: int = 0
    token_ids: tuple[int, ...] = ()  # of the segments before, as the next two
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()

    def left(self) -> Request:
        """What the segment is to draw. Each has a seed of its own: the first one's would start
        the same random numbers again."""
        if not self.segment:
            return self.request
        request, sampling = self.request, self.request.sampling
        return replace(
            request,
            prompt_ids=request.prompt_ids + self.token_ids,
            seed=seed_of(request.seed, "segment", self.segment),
            sampling=replace(
                sampling, max_new_tokens=sampling.max_new_tokens - len(self.token_ids)
            ),
        )

    def extend(self, token_ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
        """By what the segment has drawn."""
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.versions += (self.version,) * len(token_ids)

    def go_on(self, load: int, version: int) -> None:
        """In a new segment, or in the first one where nothing has been drawn yet."""
        self.segment += bool(self.token_ids)
        self.load, self.version = load, version

    def completion(self, finish_reason: str) -> Completion:
        drawn = Completion.drawn(self.token_ids, self.logprobs, finish_reason, self.version)
        return replace(drawn, versions=np.array(self.versions))
