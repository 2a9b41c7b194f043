"""An episode: one task, one seed, one environment, and the record of tokens that comes of them.

Each turn begins under the newest policy version that its engine has then, so an episode of several
turns may be drawn under several versions. A turn ends under the version that it began with, unless
the episode follows the newest (`--partial_rollouts`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from unslothrl.environments.base import Environment
from unslothrl.environments.chat import Chat
from unslothrl.types import Completion, Request, Sampling, Task, seed_of

Draw = Callable[[Request], Awaitable[Completion]]
"""Has an engine draw a turn."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One candidate of a group, before it is played."""

    id: str  # unique among an actor's episodes in flight
    task: Task
    sampling: Sampling  # `max_new_tokens` bounds the whole episode after the prompt
    seed: int  # of the first turn; later ones hash it with their number
    group_seed: int  # of the environment, the same for all candidates
    follows_newest: bool = False  # turns go on under a version that is loaded meanwhile


@dataclass(frozen=True, slots=True)
class Played:
    """What became of an episode."""

    completion: Completion  # all turns and observations
    replies: tuple[str, ...]  # what the policy wrote, turn by turn: what rewards judge
    reward: float  # what the environment gave, all turns together


async def play(episode: Episode, environment: Environment, draw: Draw, chat: Chat) -> Played:
    """Turn by turn until the environment or the tokens end it."""
    environment.reset(episode.task, episode.group_seed)
    record: Completion | None = None
    replies: list[str] = []
    reward = 0.0
    while True:
        turn = await draw(turn_request(episode, record, len(replies)))
        record = turn if record is None else joined(record, turn)
        replies.append(chat.text(turn.token_ids))
        if turn.finish_reason == "abort":
            break
        step = await environment.step(replies[-1])
        reward += step.reward
        if step.done or turn.finish_reason != "stop" or len(replies) >= environment.max_turns:
            break
        record = observed(record, chat.observation_ids(turn.token_ids, step.observation))
        if len(record.token_ids) >= episode.sampling.max_new_tokens:
            record = shortened(record, episode.sampling.max_new_tokens)
            break
    text = replies[0] if len(replies) == 1 else chat.text(record.token_ids)
    return Played(replace(record, text=text), tuple(replies), reward)


def turn_request(episode: Episode, record: Completion | None, turn: int) -> Request:
    """What asks an engine for the next turn, with all that came before as its prompt."""
    if record is None:
        return Request(
            episode.id,
            episode.task.prompt_ids,
            episode.seed,
            episode.sampling,
            episode.follows_newest,
        )
    left = episode.sampling.max_new_tokens - len(record.token_ids)
    return Request(
        f"{episode.id}/{turn}",
        episode.task.prompt_ids + record.token_ids,
        seed_of(episode.seed, "turn", turn),
        replace(episode.sampling, max_new_tokens=left),
        episode.follows_newest,
    )


def joined(record: Completion, turn: Completion) -> Completion:
    """A record with one more turn of the policy."""
    return Completion(
        record.token_ids + turn.token_ids,
        record.logprobs + turn.logprobs,
        record.sampled + turn.sampled,
        record.versions + turn.versions,
        turn.finish_reason,
    )


def observed(record: Completion, ids: tuple[int, ...]) -> Completion:
    """A record with what an environment said: tokens that nothing sampled."""
    version = record.versions[-1] if record.versions else 0
    return Completion(
        record.token_ids + ids,
        record.logprobs + (0.0,) * len(ids),
        record.sampled + (False,) * len(ids),
        record.versions + (version,) * len(ids),
        record.finish_reason,
    )


def shortened(record: Completion, tokens: int) -> Completion:
    """A record that an observation has made too long: its turn never comes."""
    return Completion(
        record.token_ids[:tokens],
        record.logprobs[:tokens],
        record.sampled[:tokens],
        record.versions[:tokens],
        "length",
    )
