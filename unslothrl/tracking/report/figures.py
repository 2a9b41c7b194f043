"""The figures of a report: titles, metrics and meaning. * is any reward, or any evaluation set."""

from unslothrl.tracking.report.history import TOKENS_PER_S

HELD_OUT = "Held-out problems solved, with 95% intervals"
# Heading -> title -> metrics, what they mean and what is healthy. What none of the runs has is left
# out. A metric's colour is its place here; those of evaluations are blue.
FIGURES: dict[str, dict[str, tuple[str, str]]] = {
    "What it earned": {
        HELD_OUT: ("eval/*/pass@1 eval/*/best_of_n",
            "pass@1: share of completions that are right; best of n: of problems with a right one. "
            "Compare intervals, not points."),
        "Reward, mean and spread of a step": ("reward/mean reward/p50",
            "The dark band has the middle half of a step's rewards, the light one all but the "
            "lowest and highest tenth. It should rise over tens of steps; single steps scatter."),
        "Rewards by name": ("reward/*",
            "The mean of each reward, with its weight. One that stays 0 teaches nothing."),
        "Score: share of right completions": ("rollout/score",
            "Of training problems, without the other rewards. Should rise with the reward: if only "
            "the reward does, it is earned without being right."),
    },
    "What it learnt": {
        "Loss": ("train/loss eval/*/loss",
            "Should fall, also where it is held out; in RL it says little and scatters around 0."),
        "Token accuracy": ("train/token_accuracy eval/*/token_accuracy",
            "The share of tokens that were the likeliest. Should rise."),
        "Entropy, nats per token": ("train/entropy eval/*/entropy",
            "How undecided the model is. A slow fall is usual; below 0.1 nothing new is tried."),
        "Pairs whose better answer is preferred, share; a tie is half": (
            "train/accuracy eval/*/accuracy", "0.5 is chance; held out 0.6 to 0.9 is usual."),
        "Margin between the two answers": ("train/margin eval/*/margin",
            "Should rise, and the share of pairs above with it."),
        "Implicit rewards, beta x log-ratio to the reference": (
            "train/reward_chosen train/reward_rejected eval/*/reward_chosen eval/*/reward_rejected",
            "How much likelier than before each answer became. They should part; both may fall."),
        "Log-probability of an answer, nats": (
            "train/logprob_chosen train/logprob_rejected eval/*/logprob_chosen "
            "eval/*/logprob_rejected", "Of the better answers it should not fall by many nats."),
        "Score, mean of all answers": ("train/reward_mean eval/*/reward_mean",
            "Should stay near 0: only differences between answers count."),
    },
    "Generated text": {
        "Completion length, tokens": ("rollout/mean_length",
            "A sudden change of a half or more is a reason to read some."),
        "Truncated completions, share": ("rollout/truncated",
            "They reached --max_new_tokens, most before an answer. Healthy: below 0.1."),
        "Groups without signal": ("reward/zero_signal_groups reward/filtered_groups",
            "Prompts whose completions all earned the same, so nothing can be learnt from them. "
            "Half of them is usual, nearly all a waste."),
        "Failed rewards": ("reward/failed", "Could not be computed and counted as 0. Healthy: 0."),
        "Prompt redraws per step": ("rollout/resamples",
            "Times that prompts without signal were replaced. Each costs a generation."),
    },
    "Episodes": {
        "Turns of an episode": ("episode/turns", "How often the model wrote before it ended."),
        "Tool calls of an episode": ("episode/tool_calls episode/failed_tool_calls",
            "Failed calls should become few."),
        "Lost episodes": ("episode/lost", "Their environment failed. Healthy: 0."),
    },
    "Updates": {
        "Sampler gap, |sampler - learner| in nats": ("train/sampler_gap train/sampler_gap_p99",
            "How far the engine's log-probabilities are from the trained model's. 0.002 to 0.02 is "
            "rounding; more than 0.1 is a fault."),
        "Staleness, versions behind": ("rollout/staleness rollout/staleness_mean",
            "How old the policy was that wrote the completions. 0 without --max_staleness."),
        "Effective tokens, share": ("train/ess",
            "How many tokens count after the correction for the gap. Healthy: above 0.9."),
        "KL against the reference, nats per token": ("train/kl_reference",
            "How far the model has moved from where it began. Below 0.1 is usual."),
        "Tokens bounded, share": ("train/clip_fraction train/correction_truncated",
            "Tokens whose ratio was clipped or truncated. Healthy: below 0.2."),
        "Gradient norm, before clipping": ("train/grad_norm",
            "Single peaks are usual; a steady rise is a reason to lower --lr."),
        "Learning rate": ("train/lr", "As --lr and its schedule say."),
        "Skipped updates": ("train/skipped_updates", "They were not finite. Healthy: 0."),
        "Critic: share of the returns' variance explained": ("train/value_explained",
            "1 is a perfect critic, below 0 one that does harm."),
    },
    "Machine": {
        "Generation, tokens per second": ("rollout/tokens_per_s", "Should stay level."),
        "Tokens per second": (TOKENS_PER_S, "Tokens read in training. Should stay level."),
        "Seconds of a step": (
            "timing/step_s timing/generation_s timing/reward_s timing/update_s timing/sync_s "
            "timing/overhead_s", "Where the time goes; usually most of it is generation."),
        "Peak memory, MB": ("memory/learner_peak_mb memory/actor_peak_mb",
            "Should be level after the first steps, below what the GPU has."),
    },
}  # fmt: skip
