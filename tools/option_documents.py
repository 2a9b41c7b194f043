"""Writes docs/options.md, docs/offline-options.md and docs/coming-from.md, from the tables of
options and config/other_names.

python tools/option_documents.py            # after an option, or another system's name, changed
python tools/option_documents.py --check    # exit code 1 where a document is not up to date
"""

import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from unslothrl.commands.help import EVERYDAY  # noqa: E402
from unslothrl.config import other_names  # noqa: E402
from unslothrl.config.offline_options import TABLES  # noqa: E402
from unslothrl.config.options import OPTIONS  # noqa: E402
from unslothrl.config.values import (  # noqa: E402
    RUN,
    Table,
    choices_of,
    limits_text,
    toml_value,
)

SAME = "the same"

# The options of each system, in the order of its own documentation. A name that is also one of
# ours but means something else there has our option and a few words.
DISTRL = """
model dataset run_name project_name lora_save_path lr max_new_tokens max_prompt_tokens temperature
episodes num_candidates batch_size learner_chunk_size train_batch_size topk save_every eval_every
number_of_actors number_of_learners learner max_lora_rank lora_alpha lora_dropout actor_gpu_usage
learner_gpu_usage keep_last_x top_k_train use_vllm
"""
COLOSSAL = """
model dataset eval_dataset project num_episodes num_trainers num_inferencer num_generations
inference_batch_size inference_microbatch_size train_batch_size train_minibatch_size
train_microbatch_size ray_dir master_address master_port backend temperature top_k top_p
system_prompt max_new_tokens max_prompt_tokens algo learning_rate kl_coeff reward_type
eval_interval save_interval save_dir eval_save_dir rollout_save_dir tensor_parallel_size
pipeline_parallel_size zero_stage producer_tensor_parallel_size loss_variation filter_range
dynamic_batching clip_eps_low clip_eps_high skip_threshold soft_over_length_punishment cache_length
filter_truncated_response
"""
RL2 = """
train_data.path test_data.path train_data.experience.responses_per_prompt
train_data.experience.max_turns train_data.experience.max_new_tokens actor.model_name actor.dtype
actor.max_length_per_device actor.optimizer.lr actor.optimizer.weight_decay actor.max_grad_norm
actor.scheduler.name actor.scheduler.warmup_ratio actor.offload_model actor.offload_optimizer
actor.use_liger_kernel actor.enable_gradient_checkpointing actor.ddp_size actor.cp_size
actor.update_per_rollout actor.clip actor.tis_coef actor.avg_level actor.freeze_steps actor.kl.coef
actor.kl.type actor.kl.reward_estimator actor.kl.loss_estimator actor.entropy.coef
critic.optimizer.lr critic.clip adv.estimator adv.gamma adv.lamda adv.global_norm adv.norm_var
rollout.train_prompts_per_rollout rollout.responses_per_prompt rollout.server_args.tp_size
rollout.server_args.mem_fraction_static rollout.train_sampling_params.temperature
rollout.test_sampling_params.temperature rollout.env_path rollout.partial_rollout
rollout.dynamic_filtering trainer.project trainer.experiment_name trainer.load_ckpt_from
trainer.total_steps trainer.test_freq trainer.save_dir trainer.save_freq
"""
TRL = """
model_name_or_path learning_rate lr_scheduler_type warmup_ratio warmup_steps weight_decay
max_grad_norm per_device_train_batch_size gradient_accumulation_steps generation_batch_size
steps_per_generation num_train_epochs max_steps num_generations num_generations_eval
max_completion_length max_prompt_length temperature top_p top_k min_p repetition_penalty
generation_kwargs use_vllm vllm_mode vllm_gpu_memory_utilization vllm_max_model_length
vllm_tensor_parallel_size vllm_server_host vllm_enable_sleep_mode
vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max
vllm_importance_sampling_clip_min beta num_iterations epsilon epsilon_high delta
importance_sampling_level reward_funcs reward_weights scale_rewards loss_type
mask_truncated_completions sync_ref_model top_entropy_quantile entropy_coef
max_tool_calling_iterations shuffle_dataset bf16 gradient_checkpointing optim logging_steps
log_completions eval_strategy eval_steps save_steps save_total_limit output_dir run_name seed
resume_from_checkpoint deepspeed
"""
UNSLOTH = """
model_name max_seq_length load_in_4bit fast_inference max_lora_rank gpu_memory_utilization r
target_modules lora_alpha lora_dropout use_gradient_checkpointing random_state bias use_rslora
learning_rate weight_decay warmup_ratio lr_scheduler_type optim logging_steps
per_device_train_batch_size gradient_accumulation_steps num_generations max_prompt_length
max_completion_length num_train_epochs max_steps save_steps max_grad_norm vllm_sampling_params
temperature reward_funcs output_dir
"""
VERL = """
data.train_files data.val_files data.prompt_key data.train_batch_size data.max_prompt_length
data.max_response_length data.shuffle actor_rollout_ref.model.path
actor_rollout_ref.model.lora_rank actor_rollout_ref.model.lora_alpha
actor_rollout_ref.model.enable_gradient_checkpointing actor_rollout_ref.model.use_remove_padding
actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.optim.lr_warmup_steps
actor_rollout_ref.actor.optim.weight_decay actor_rollout_ref.actor.ppo_mini_batch_size
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu actor_rollout_ref.actor.clip_ratio
actor_rollout_ref.actor.clip_ratio_low actor_rollout_ref.actor.clip_ratio_high
actor_rollout_ref.actor.clip_ratio_c actor_rollout_ref.actor.loss_agg_mode
actor_rollout_ref.actor.entropy_coeff actor_rollout_ref.actor.use_kl_loss
actor_rollout_ref.actor.kl_loss_coef actor_rollout_ref.actor.kl_loss_type
actor_rollout_ref.actor.ppo_epochs actor_rollout_ref.actor.grad_clip
actor_rollout_ref.actor.fsdp_config.param_offload actor_rollout_ref.rollout.name
actor_rollout_ref.rollout.n actor_rollout_ref.rollout.temperature actor_rollout_ref.rollout.top_p
actor_rollout_ref.rollout.top_k actor_rollout_ref.rollout.gpu_memory_utilization
actor_rollout_ref.rollout.tensor_model_parallel_size actor_rollout_ref.rollout.max_num_seqs
actor_rollout_ref.rollout.val_kwargs.n actor_rollout_ref.rollout.val_kwargs.temperature
critic.optim.lr critic.cliprange_value algorithm.adv_estimator algorithm.gamma algorithm.lam
algorithm.norm_adv_by_std_in_grpo algorithm.use_kl_in_reward algorithm.kl_penalty
algorithm.kl_ctrl.kl_coef algorithm.filter_groups custom_reward_function.path
trainer.total_epochs trainer.total_training_steps trainer.project_name trainer.experiment_name
trainer.nnodes trainer.n_gpus_per_node trainer.save_freq trainer.test_freq trainer.critic_warmup
trainer.resume_mode trainer.default_local_dir
"""
AXOLOTL = """
base_model load_in_4bit adapter lora_model_dir lora_r lora_alpha lora_dropout lora_target_modules
lora_target_linear rl trl.beta trl.max_completion_length trl.use_vllm
trl.vllm_gpu_memory_utilization trl.vllm_max_model_len trl.reward_funcs trl.reward_weights
trl.num_generations trl.scale_rewards trl.temperature trl.top_p trl.top_k trl.num_iterations
trl.epsilon trl.epsilon_high trl.loss_type datasets val_set_size sequence_len sample_packing
micro_batch_size gradient_accumulation_steps num_epochs max_steps optimizer learning_rate
lr_scheduler warmup_steps warmup_ratio weight_decay max_grad_norm bf16 gradient_checkpointing
flash_attention evals_per_epoch eval_steps saves_per_epoch save_steps save_total_limit output_dir
resume_from_checkpoint seed deepspeed fsdp
"""
SYSTEMS = {  # heading -> (its options, those of them that mean something else there, what to know)
    "DistRL-LLM": (
        DISTRL,
        {},
        "Its command line works here: `python train_distributed.py` with the same flags and the "
        "same defaults, except for the name of a project. The learners have the same names, `pg` "
        "and `grpo`. Evaluation uses the same temperature, top-p and number of completions. Every "
        "figure is also in the run's folder.",
    ),
    "Colossal-RL": (
        COLOSSAL,
        {
            "train_batch_size": (
                "updates_per_rollout",
                "there: prompts per update; here `--train_batch_size` is the micro-batch",
            ),
            "top_k": ("sampling_top_k", "here `--topk` is how many candidates are trained on"),
            "backend": ("engine", "there: what generates; here `--backend` is what trains"),
            "tensor_parallel_size": (
                "number_of_learners",
                "there: of the trainer; here a learner has its whole 4-bit base on one card",
            ),
        },
        "`GRPO` and `DAPO` are `--learner grpo` and `--learner dapo`; `think_answer_tags`, `boxed` "
        "and `code` are rewards with the same names. Its JSONL files, with `messages` and "
        "`gt_answer` or `test_cases`, are read as they are, and so is a JSON map of evaluation "
        "sets.",
    ),
    "RL2": (
        RL2,
        {},
        "Options are flags here: `--lr 1e-6` for `actor.optimizer.lr=1e-6`. Its default objective "
        "is `--learner dr_grpo`; with `adv.estimator=gae` it is `--learner ppo`. Data named "
        "`split@path` is `path@split` here. An environment's `step` gets only the policy's last "
        "turn: see [contributing.md](contributing.md#an-environment-in-one-file).",
    ),
    "TRL": (
        TRL,
        {"top_k": ("sampling_top_k", "here `--topk` is how many candidates are trained on")},
        "A `GRPOConfig` becomes flags, or lines of a recipe. `loss_type` is `--aggregation` with "
        "the learner's other parts: there are `--learner grpo`, `dapo`, `dr_grpo` and `cispo`, and "
        "[algorithms.md](algorithms.md#agreement-with-trl) shows how closely the losses agree. "
        "Reward functions are `--reward mine.py:function`: see [rewards.md](rewards.md#your-own).",
    ),
    "Unsloth's notebooks": (
        UNSLOTH,
        {},
        "The cells become one command. The model names of the notebooks work as they are "
        "(`--model unsloth/Qwen2.5-3B-Instruct-bnb-4bit`), and the backend is Unsloth's own where "
        "it is installed. `max_seq_length` is the sum of two limits here.",
    ),
    "verl": (
        VERL,
        {"actor_rollout_ref.rollout.top_k": ("sampling_top_k", "off is 0 here, -1 there")},
        "Options are flags here: `--num_candidates 8` for `actor_rollout_ref.rollout.n=8`. Parquet "
        "files that its scripts write are read as they are.",
    ),
    "axolotl": (
        AXOLOTL,
        {
            "adapter": ("max_lora_rank", "there: lora or qlora; here `--adapter` is a folder"),
            "trl.top_k": ("sampling_top_k", ""),
        },
        "A YAML file becomes a recipe: `name = value` lines in a TOML file, for `--recipe`.",
    ),
}


def coming_from() -> str:
    """docs/coming-from.md."""
    lines = [
        "# Coming from another system",
        "",
        "What the options of other systems are called here. You need not look them up: if you use "
        "one of their names on the command line or in a recipe, the error gives the name here.",
        "",
        "[options.md](options.md) describes each option. This page is generated by "
        "`python tools/option_documents.py`.",
    ]
    for system, (names, different, about) in SYSTEMS.items():
        lines += ["", f"## {system}", "", about, "", "| there | here | |", "| --- | --- | --- |"]
        lines += [row(name, different) for name in names.split()]
    return "\n".join(lines) + "\n"


def row(theirs: str, different: dict[str, tuple[str, str]]) -> str:
    """A name of another system, and what is set here."""
    here, about = different.get(theirs) or answer_to(theirs)
    flags = " ".join(f"`--{name}`" for name in here.split())
    return cells(f"`{theirs}`", flags or "nothing", about)


def answer_to(theirs: str) -> tuple[str, str]:
    """-> (our options, what to know) for a name of another system. KeyError for an unknown one."""
    if theirs in OPTIONS:
        return theirs, SAME
    for key in other_names.keys(theirs):
        if key in other_names.OTHERS:
            names, about = other_names.OTHERS[key]
            return " ".join(names), flags_quoted(about)
        if key in other_names.WITHOUT:
            return "", flags_quoted(other_names.WITHOUT[key])
        if key in OPTIONS:
            return key, ""
    raise KeyError(theirs)


def flags_quoted(text: str) -> str:
    return re.sub(r"--[a-z_]+( [\w.]+)?", lambda found: f"`{found[0]}`", text)


def options() -> str:
    """docs/options.md."""
    lines = [
        "# Options",
        "",
        f"All {len(OPTIONS)} options of `unslothrl train`, which `unslothrl plan` also takes. "
        f"`unslothrl train --help` shows the {len(EVERYDAY)} everyday ones, which are in "
        "bold here, and `unslothrl train --help_all` shows all. Each can also be a line of a "
        "recipe (`lr = 1e-5` in a TOML file, for `--recipe`). Flags may be written with dashes "
        "(`--max-steps`).",
        "",
        "A default that does not fit the machine is changed, and the change is printed. What you "
        "set is kept. This page is generated by `python tools/option_documents.py`.",
    ]
    for group in dict.fromkeys(entry.metadata["group"] for entry in OPTIONS.values()):
        lines += [
            "",
            f"## {group}",
            "",
            "| option | description | default | allowed |",
            "| --- " * 4 + "|",
        ]
        for name, entry in OPTIONS.items():
            if entry.metadata["group"] == group:
                lines.append(cells(flag(name), about(name), default(name), allowed(name)))
    return "\n".join(lines) + "\n"


def stage_options() -> str:
    """docs/offline-options.md."""
    lines = [
        "# Options of sft, dpo and rm",
        "",
        "The options of [`unslothrl sft`, `dpo` and `rm`](offline.md). Where an option is not of "
        "all three, or its default is not the same for all, it says so. Each can also be a line of "
        "a recipe (a TOML file, for `--recipe`). This page is generated by "
        "`python tools/option_documents.py`.",
    ]
    names = dict.fromkeys(name for table in TABLES.values() for name in table.options)
    entries = {name: [t.options[name] for t in TABLES.values() if name in t.options]
               for name in names}  # fmt: skip
    for group in dict.fromkeys(found[0].metadata["group"] for found in entries.values()):
        lines += ["", f"## {group}", "", "| option | description | default | allowed |"]
        lines.append("| --- " * 4 + "|")
        for name, (entry, *_) in entries.items():
            if entry.metadata["group"] == group:
                lines.append(stage_row(name))
    return "\n".join(lines) + "\n"


def stage_row(name: str) -> str:
    """An option, with its default for each command."""
    tables = {command: table for command, table in TABLES.items() if name in table.options}
    (table, *_) = tables.values()
    defaults = {command: default(name, table) for command, table in tables.items()}
    if len(set(defaults.values())) == 1:
        shown = defaults[table.command]
    else:
        shown = ", ".join(f"{command} {value}" for command, value in defaults.items())
    of = "" if len(tables) == len(TABLES) else f"; {' and '.join(tables)} only"
    described = about(name, table) + of
    return cells(flag(name, table), described, shown, allowed(name, table))


def cells(*texts: str) -> str:
    """A row of a table."""
    return "".join(f"| {text} " if text else "| " for text in texts) + "|"


def flag(name: str, table: Table = RUN) -> str:
    written = f"`--{name}`" + (f", `--no_{name}`" if table.kind(name) is bool else "")
    return f"**{written}**" if table is RUN and name in EVERYDAY else written


def about(name: str, table: Table = RUN) -> str:
    metadata = table.options[name].metadata
    text, unit = metadata["help"], metadata.get("unit", "")
    suffix = f" ({unit})" if unit and not re.search(rf"\b{unit}\b", text) else ""
    return html.escape(text, quote=False).replace("|", "\\|") + suffix


def default(name: str, table: Table = RUN) -> str:
    value = table.options[name].default
    if value in (None, ()):
        return ""
    return f"`{value if isinstance(value, str) else toml_value(value)}`"


def allowed(name: str, table: Table = RUN) -> str:
    choices = choices_of(name, table)
    text = ", ".join(f"`{choice}`" for choice in choices) if choices else limits_text(name, table)
    return text + (", or a .py file" if name == "learner" else "")


DOCUMENTS = {
    "docs/options.md": options,
    "docs/offline-options.md": stage_options,
    "docs/coming-from.md": coming_from,
}


def main(check: bool) -> int:
    """-> the exit code."""
    stale = []
    for path, text in DOCUMENTS.items():
        file = ROOT / path
        if file.is_file() and file.read_text() == text():
            continue
        stale.append(path)
        if not check:
            file.write_text(text())
    for path in stale:
        print(f"{path} {'is not up to date' if check else 'is written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
