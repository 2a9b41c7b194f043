"""Before the first step: what a user has written is tried, and what a run says of itself.

Custom rewards, environments and tools are tried on made-up completions of a task of the data, and
objectives on a batch of random numbers, before a model is loaded. A function may well refuse one
text. What fails on all of them is refused, in a line with its file.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unslothrl import environments, rewards
from unslothrl.actors.episodes import Played, play
from unslothrl.algorithms.objective import FUNCTIONS, Objective
from unslothrl.cluster.build import environment_of, rules_of
from unslothrl.config.options import Config
from unslothrl.config.toml_files import EMBEDDED_RECIPES
from unslothrl.data.formats import Record
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.embedded import BASES, KNOWS
from unslothrl.environments import SINGLE_TURN
from unslothrl.errors import RunError, UserError
from unslothrl.records import Completion, Request, Sampling, Task
from unslothrl.rewards.scorer import Scorer, graded, is_late
from unslothrl.text import counted, plain
from unslothrl.tracking.report.signs import EARNS_NOTHING
from unslothrl.training import credit

if TYPE_CHECKING:  # not loaded where no environment runs
    from unslothrl.environments.host import Host

MADE_UP = (
    "<think>\nIt is \\boxed{%s}.\n```python\nprint(%s)\n```\n</think>\n<answer>\n%s\n</answer>",
    "%s",
    '{"answer": "%s"}',
)
TURNS = 2  # of a made-up episode
SENTENCE = 5  # words of an answer
GROUPS = (  # rewards that an advantage is tried on, the last without signal
    (0.0, 1.0), (1.0, 0.25, 0.0), (1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0), (0.5, 0.5),
)  # fmt: skip
MOST_ADVANTAGE = 1_000
WHOLE = ("accuracy", "boxed")  # rewards that compare whole answers
WORDS = re.compile(r"[^\W\d_]{2,}")
NUMBER = re.compile(r"(?<![\d.])-?\d+(?:,\d{3})*(?:\.\d+)?")


def shortest(data: Data) -> Task:
    """The training task with the shortest prompt, or the first of data rendered as used."""
    tasks = getattr(data.train, "tasks", None)
    known = tasks if isinstance(tasks, list) else data.train.draw(0, 1)[0]
    return min(known, key=lambda task: len(task.prompt_ids))


def texts_for(task: Task) -> list[str]:
    answer = task.answer or "7"
    last = [form for n in NUMBER.findall(answer)[-1:] for form in (n, n.replace(",", ""))]
    answers = {answer: None, **dict.fromkeys(last)}  # of a sentence
    return [text.replace("%s", each) for each in answers for text in MADE_UP]


def try_rewards(scorer: Scorer, task: Task) -> list[str]:
    """-> a line for each custom function that gives 0 to all made-up right answers. UserError for
    one that fails on all; one that is late may be loading something, and counts as usual in the
    run."""
    notes = []
    for chosen in scorer.chosen:
        if chosen.signature is None:
            continue
        file, _, name = chosen.function.rpartition(":")
        errors: list[str | None] = []
        for text in texts_for(task):
            pairs = [(task, Completion.of_text(text))] * (2 if chosen.signature.is_batch else 1)
            raw = scorer.results(chosen, pairs)
            results = list(map(graded, raw))
            error = next((each.error for each in results if each.error is not None), None)
            earns = any(each.value["reward"] for each in results) or raw[0].value is None
            if is_late(error or "") or (error is None and earns):
                break
            errors.append(error)
        else:
            if None in errors:
                notes += [
                    f"warning: reward {name} {EARNS_NOTHING} the right answer, between <answer> "
                    "tags, in \\boxed{}, alone and as JSON: if it grades answers, see what it "
                    "reads with `unslothrl score`"
                ] * bool(task.answer)
                continue
            error, place = errors[-1], f"({Path(file).name}, line {chosen.signature.line})"
            where = "" if ", line " in str(error) or not chosen.signature.line else f" {place}"
            raise UserError(f"reward {name} fails on made-up completions: {error}{where}: fix it")
    return notes


def sentences(chosen: Sequence[rewards.Chosen], tasks: Sequence[Task | Record]) -> list[str]:
    """A line where a tenth of the answers are sentences, and a reward compares whole answers."""
    names = [each.name for each in chosen if each.name in WHOLE]
    told = [task.answer for task in tasks if len(WORDS.findall(task.answer)) >= SENTENCE]
    if not names or not told or 10 * len(told) < len(tasks):
        return []
    return [
        f"warning: {len(told)} of {len(tasks)} answers are sentences, such as "
        f"{plain(told[0])[:80]!r}: reward {' and '.join(names)} {EARNS_NOTHING} all but the same "
        'words: end each with what is to be compared after ####, as in "#### 60", or take a reward '
        "of your own"
    ]


def try_environment(config: Config, task: Task, tokenizer) -> None:
    """UserError for an environment or tools that cannot be loaded, or whose episode is lost
    whatever the policy says. Passages to be searched are not read: they were checked."""
    setup = environment_of(config)
    if setup is None:
        return
    from unslothrl.environments.host import Host

    with tempfile.TemporaryDirectory() as folder:
        passage = Path(folder) / "passage.jsonl"
        passage.write_text(json.dumps({"text": task.problem or "nothing"}) + "\n")
        search = f"{environments.SEARCH}{passage}"
        tools = tuple(search if environments.corpus_of(t) else t for t in setup.tools)
        host = Host(replace(setup, tools=tools))
        try:
            host.start()
            lost: list[str] = []
            for text in texts_for(task):
                lost.append(_played(config, host, task, tokenizer, text).lost)
                if not lost[-1]:
                    break
        finally:
            host.close()
    if all(lost):
        advice = "set it higher" if "--max_prompt_tokens" in lost[0] else "fix it"
        raise UserError(f"{setup.label} fails in a made-up episode: {lost[0]}: {advice}")


def _played(config: Config, host: "Host", task: Task, tokenizer, text: str) -> Played:
    """An episode in which the policy says `text` in each turn."""
    dialogue = TemplateDialogue(tokenizer)
    end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    ids = (*dialogue.tokens(text), *end)
    longest = max(config.episode_tokens, 2 * TURNS * len(ids))
    sampling = Sampling(config.temperature, 1.0, 0, longest, longest)
    rules = replace(rules_of(config), context=0, max_turns=min(config.max_turns or TURNS, TURNS))

    async def draw(request: Request) -> Completion:
        return Completion.drawn(ids, (0.0,) * len(ids), "stop", 0)

    first = Request("trial", task.prompt_ids, 0, sampling)
    return asyncio.run(play(task, first, 0, host, draw, dialogue, rules))


def try_objective(objective: Objective, max_new_tokens: int) -> None:
    """UserError where an objective's function fails on two sequences, or has no gradient."""
    if not any(callable(getattr(objective, part)) for part in FUNCTIONS):
        return
    import torch

    from unslothrl.algorithms.losses import Denominators, Tokens, policy_loss

    draw = torch.Generator().manual_seed(0)
    lengths = [3, 2]
    policy, entropies, *others = torch.rand(5, sum(lengths), generator=draw)
    sampler, old, reference = (-each for each in others)
    logprobs = (-policy).requires_grad_()
    try:
        if not objective.has_critic:
            found = credit.advantages_by(objective)(list(map(list, GROUPS)))
            largest = max(abs(each) for group in found for each in group)
            if largest > MOST_ADVANTAGE:
                name = getattr(objective.advantage, "learner", objective.advantage)
                raise RunError(
                    f"learner {name}, advantage: up to {largest:,.0f} for "
                    f"rewards such as {GROUPS[2]}: what it divides by is almost 0 there"
                )
        advantages = torch.tensor([1.0] * lengths[0] + [-1.0] * lengths[1])
        tokens = Tokens(lengths, logprobs, entropies, advantages, sampler, old, reference)
        over = Denominators(len(lengths), sum(lengths), max_new_tokens)
        loss = policy_loss(objective, tokens, over).value
    except RunError as error:  # names the file and the line
        raise UserError(f"{error}: fix it") from None
    if not loss.requires_grad:
        raise UserError(
            "learner: its loss has no gradient: compute it from the ratio or the log-probabilities "
            "without detach()"
        )


def header(config: Config, data: Data, steps: int, notes: Sequence[str]) -> list[str]:
    """A title and lines for it: who does what, for which reward, on how much data."""
    lines = [
        f"{config.learner} on {config.dataset}, base {config.model}",
        f"{counted(config.number_of_actors, 'actor')} ({config.engine}), "
        f"{counted(config.number_of_learners, 'learner')} ({config.backend}), "
        f"cluster {config.cluster}",
        *facts(config, data),
        f"{counted(steps, 'step')}: {counted(config.batch_size, 'prompt')} each, "
        f"{counted(config.num_candidates, 'episode' if config.has_environment else 'completion')} "
        f"a prompt of at most {config.episode_tokens} tokens",
    ]
    if config.shuffle_rewards:
        lines.append("a control: the rewards of each group are shuffled, so wrong ones may earn 1")
    if config.model in BASES:
        lines.append(f"options that are not set: recipe {EMBEDDED_RECIPES[config.model]}")
        lines += [KNOWS[config.model]] * (config.dataset != config.model)
    lines += notes
    if config.top_p < 1 or config.sampling_top_k:
        lines.append(
            "warning: top_p and sampling_top_k leave out tokens that the learner does not: "
            "the ratio of policy and sampler is biased"
        )
    return [*lines, *data.notes]


def facts(config: Config, data: Data) -> list[str]:
    """The rewards with what a full mark of each earns, and the sizes of the splits."""
    parts = [f"{each.weight:g} x {each.name}" for each in rewards.choose(config.reward)]
    if config.environment != SINGLE_TURN:
        parts.append("the environment's")
    train = "problems without end"
    if isinstance(data.train, FiniteTasks):
        train = counted(len(data.train.tasks), "problem")
    evals = [f"{len(tasks)} to evaluate on ({name})" for name, tasks in data.evals.items()]
    sizes = ", ".join([f"{train} to train on", *evals])
    return [f"reward: {' + '.join(parts)}", f"data: {sizes}"]
