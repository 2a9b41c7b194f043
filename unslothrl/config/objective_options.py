"""The fine numbers of an objective: `--objective.NAME VALUE`, or [objective] in a TOML file."""

from dataclasses import dataclass

from unslothrl.config.option import objective, part

NOT_CLIPPED = ("with clip none", "with ratio one", "with one update per rollout")
NO_CRITIC = "without advantage gae"
NO_DEVIATION = ("with advantage centred", "with advantage leave_one_out", "with advantage gae")
NO_KL = "with kl none"
NO_EPISODES = "without environment or tools"


@dataclass(frozen=True)
class ObjectiveOptions:
    """See `options.Config`, which has all of them."""

    advantage: str | None = part(
        "how a reward becomes an advantage",
        choices=("centred", "standardised", "batch_standardised", "leave_one_out", "gae"),
    )
    advantage_std: str | None = part(
        "standard deviation used for standardising: over n, or n - 1",
        choices=("population", "sample"),
        unused=NO_DEVIATION,
    )
    advantage_epsilon: float | None = part(
        "number added to that standard deviation", at_least=0, at_most=1, unused=NO_DEVIATION
    )
    ratio: str | None = part(
        "ratio of the policy to the old policy", choices=("token", "sequence", "trajectory", "one")
    )
    clip: str | None = part("how the ratio is clipped", choices=("surrogate", "weight", "none"))
    clip_low: float | None = part(
        "clip the ratio at 1 - this value", at_least=0, at_most=1, unused=NOT_CLIPPED
    )
    clip_high: float | None = part(
        "clip the ratio at 1 + this value", at_least=0, unused=NOT_CLIPPED
    )
    clip_dual: float | None = part(
        "bound of the loss for negative advantages, over 1; 0 = off",
        at_least=0,
        unused=("with clip weight", *NOT_CLIPPED),
    )
    skip_threshold: float | None = part(
        "leave out sequences whose mean ratio is over this value, 0 = off",
        at_least=0,
        unused=NOT_CLIPPED[1:],
    )
    aggregation: str | None = part(
        "what the loss averages over", choices=("token", "sequence", "constant")
    )
    kl: str | None = part(
        "where the KL against the reference is added", choices=("none", "loss", "reward")
    )
    kl_estimator: str | None = part(
        "how the KL is estimated", choices=("k1", "k2", "k3"), unused=NO_KL
    )
    kl_coefficient: float | None = part("weight of the KL", at_least=0, unused=NO_KL)
    entropy_coefficient: float | None = part("weight of the entropy bonus", at_least=0)
    correction: str | None = part(
        "correction for the difference between sampler and learner",
        choices=("none", "truncated", "masked", "geometric"),
    )
    correction_low: float | None = part(
        "lower bound of the correction (if the learner has none, the usual one)",
        at_least=0,
        no_more_than="correction_high",
        unused=("with correction none", "with correction truncated"),
    )
    correction_high: float | None = part(
        "upper bound of the correction (if the learner has none, the usual one)",
        over=0,
        unused="with correction none",
    )
    mask_truncated: bool | None = part("leave truncated completions out of the loss")
    overlong_cache: int | None = objective(
        None,
        "length of the range before max_new_tokens in which completions are softly punished, "
        "0 = off; default: the learner's",
        at_least=0,
        no_more_than="max_new_tokens",
        unit="tokens",
    )
    filter_low: float | None = part(
        "lowest accuracy of a group that is trained on",
        at_least=0,
        at_most=1,
        no_more_than="filter_high",
    )
    filter_high: float | None = part(
        "highest accuracy of a group that is trained on", at_least=0, at_most=1
    )
    max_resample: int | None = part(
        "maximum number of redraws of prompts for groups that were filtered out",
        at_least=0,
        at_most=100,
    )
    gamma: float = objective(1.0, "discount factor of gae", over=0, at_most=1, unused=NO_CRITIC)
    gae_lambda: float = objective(
        0.95,
        "lambda of gae: 1 trusts rewards, 0 the critic",
        at_least=0,
        at_most=1,
        unused=NO_CRITIC,
    )
    critic_lr: float | None = objective(
        None, "learning rate of the critic; default: lr", over=0, at_most=1, unused=NO_CRITIC
    )
    value_clip: float = objective(
        0.2, "clip range of the critic's values, 0 = off", at_least=0, unused=NO_CRITIC
    )
    freeze_steps: int = objective(
        0,
        "first steps, in which only the critic is trained",
        at_least=0,
        unit="steps",
        refused=(NO_CRITIC,),
    )
    turn_rewards: str = objective(
        "sum",
        "how the rewards of an episode's turns are combined",
        choices=("sum", "last", "discounted"),
        unused=NO_EPISODES,
    )
    turn_discount: float = objective(
        0.9,
        "factor by which each later turn's reward counts less, with turn_rewards discounted",
        over=0,
        at_most=1,
        unused=(NO_EPISODES, "without turn_rewards discounted"),
    )
    normalize_reward_model: bool = objective(
        True,
        "scale the score of a reward model, rm:runs/NAME, to mean 0 and standard deviation 1 on "
        "its own evaluation pairs",
        unused="without a reward model",
    )
