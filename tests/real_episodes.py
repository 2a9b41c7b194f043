"""Episodes over real engines, learners and processes, and what must be true of their record."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from environment_files import asked

from unslothrl.actors.actor import Actor
from unslothrl.cluster.build import build_learner
from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED
from unslothrl.learners.learner import Learner
from unslothrl.planning.placement import LEARNER, ProcessPlan
from unslothrl.records import Completion, Group, Request, Sample, Sampling, Task
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Machine
from unslothrl.weights import base_model

MOST_GAP = 0.01  # nats between sampler and learner, the mean over tokens: bfloat16's rounding
CALCULATOR = {
    "recipe": "calculator-cpu", "number_of_actors": 0, "cluster": "local", "engine": "transformers",
}  # fmt: skip
ASK = '''
class Ask:
    """Asks for three products, one after the other."""

    max_turns = 3

    def reset(self, task, seed):
        self.asked = 0
        return "What is 34 * 56?"

    async def step(self, action):
        self.asked += 1
        return f"What is {self.asked}7 * 21?", 0.0, False
'''
# A turn begins with reasoning, which is left out of the turns before.
DROPS_REASONING = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1].strip() }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
</think>
{% endif %}"""


def dropping(tokenizer):
    """The tokenizer with a template that drops earlier reasoning."""
    made = copy.deepcopy(tokenizer)
    made.chat_template = DROPS_REASONING
    return made


def config_of(**options: Any) -> Config:
    """Of `--recipe calculator-cpu` in one process, with the adapter that has seen turns."""
    return resolve({**CALCULATOR, **options}, Machine(2, 8000, 8000, 10_000)).config


def learner_of(config: Config) -> Learner:
    """Whose actor plays episodes with its own weights, version 0."""
    learner = build_learner(config, base_model.prepare(EMBEDDED), ProcessPlan(LEARNER, 0))
    learner.actor.load(learner.publish(0))
    return learner


def sampling_of(config: Config) -> Sampling:
    return Sampling(1.0, 1.0, 0, config.max_new_tokens, config.episode_tokens)


def tasks(number: int) -> list[Task]:
    """Whose ids decide what the calculator asks."""
    own = asked("?")
    return [Task(str(i), "", "", own.prompt, own.prompt_ids) for i in range(number)]


class Draws:
    """Keeps what an actor asks its engine for, and what that draws."""

    def __init__(self, actor: Actor):
        self.drawn: dict[str, tuple[Request, Completion]] = {}
        self.draw, actor._draw = actor._draw, self.watched

    async def watched(self, request: Request) -> Completion:
        completion = await self.draw(request)
        self.drawn[request.id] = request, completion
        return completion

    def check(self, groups: Sequence[Group]) -> list[Sample]:
        """-> every sequence of the groups as it is trained on. It has exactly what was sampled, in
        order and under the versions of then; each turn was asked for with all that stands before
        it; nothing else counts as sampled."""
        samples = []
        for index, group in enumerate(groups):
            assert group.failures == ()
            for candidate, completion in enumerate(group.completions):
                turns = self.of_episode(f"{index}/{candidate}")
                assert len(turns) == len(completion.transcript.turns)
                for prompt_ids, sequence in completion.sequences(group.task):
                    samples.append(self.checked(prompt_ids, sequence, turns))
                assert turns == []
        return samples

    def of_episode(self, id: str) -> list[tuple[Request, Completion]]:
        ids = [id, *(f"{id}/{turn}" for turn in range(1, len(self.drawn)))]
        return [self.drawn[each] for each in ids if each in self.drawn]

    @staticmethod
    def checked(
        prompt_ids: tuple[int, ...],
        sequence: Completion,
        turns: list[tuple[Request, Completion]],
    ) -> Sample:
        """Takes the sequence's turns from the front of `turns`."""
        at = 0
        while at < len(sequence.token_ids):
            if not sequence.sampled[at]:
                assert sequence.logprobs[at] == 0
                at += 1
                continue
            request, drawn = turns.pop(0)
            end = at + len(drawn.token_ids)
            assert request.prompt_ids == prompt_ids + tuple(sequence.token_ids[:at])
            for name in ("token_ids", "logprobs", "sampled", "versions"):
                assert (getattr(sequence, name)[at:end] == getattr(drawn, name)).all()
            at = end
        sample = Sample.of(prompt_ids, sequence)
        assert sample.tokens == len(sample.sampler_logprobs) == sum(sequence.sampled)
        return sample


def gaps(logprobs: Sequence[np.ndarray], samples: Sequence[Sample]) -> np.ndarray:
    """|learner - sampler| of every sampled token, [tokens]."""
    ours = np.concatenate(logprobs)
    theirs = np.concatenate([sample.sampler_logprobs for sample in samples])
    assert ours.shape == theirs.shape
    return np.abs(ours - theirs)


def of_several_turns(groups: Sequence[Group]) -> list[Completion]:
    return [one for group in groups for one in group.completions
            if len(one.transcript.turns) > 1]  # fmt: skip
