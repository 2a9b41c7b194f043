"""What other systems call the options of a run, for those who come from there.

TRL's GRPOConfig 1.15, Unsloth's notebooks, verl 0.6 and axolotl; of verl's dotted names the last
part. A name that stands for several of ours is answered with all of them.
"""

TABLE = (  # our options, their names, what there is to know
    ("model", "base_model model_name model_name_or_path model_id pretrained", ""),
    ("dataset", "datasets dataset_name train_files train_file dataset_path", ""),
    ("eval_dataset", "val_files val_file test_datasets eval_file", ""),
    ("num_candidates", "num_generations n_samples_per_prompt rollout_n group_size", ""),
    ("max_new_tokens", "max_completion_length max_response_length max_tokens", ""),
    ("max_prompt_tokens", "max_prompt_length", ""),
    (
        "max_prompt_tokens max_new_tokens",
        "max_seq_length max_length max_model_len sequence_len context_length",
        "prompt and completion have a limit each",
    ),
    ("lr", "learning_rate actor_lr actor_learning_rate", ""),
    ("lr_schedule", "lr_scheduler_type lr_scheduler scheduler", ""),
    ("warmup_steps", "warmup_ratio num_warmup_steps", "in steps"),
    (
        "train_batch_size",
        "micro_batch_size mini_batch_size ppo_micro_batch_size_per_gpu",
        "completions at once in memory; it changes nothing else",
    ),
    (
        "batch_size num_candidates train_batch_size",
        "per_device_train_batch_size gradient_accumulation_steps generation_batch_size",
        "a step has batch_size prompts with num_candidates completions each, and as many micro- "
        "batches of train_batch_size as they take",
    ),
    (
        "updates_per_rollout",
        "steps_per_generation ppo_mini_batch_size",
        "the optimiser steps that a rollout is divided into",
    ),
    ("epochs_per_rollout", "num_iterations ppo_epochs num_ppo_epochs", ""),
    ("episodes", "num_train_epochs num_epochs total_epochs epochs n_epochs", ""),
    ("max_steps", "total_training_steps num_steps total_steps max_iters", ""),
    (
        "kl kl_coefficient",
        "beta kl_coef kl_loss_coef init_kl_coef use_kl_loss",
        "--kl loss --kl_coefficient 0.04, for one",
    ),
    ("clip_low clip_high", "epsilon clip_ratio cliprange clip_eps", ""),
    ("clip_low", "clip_ratio_low epsilon_low", ""),
    ("clip_high", "clip_ratio_high epsilon_high", ""),
    ("clip_dual", "delta clip_ratio_c", ""),
    ("ratio", "importance_sampling_level", ""),
    ("aggregation", "loss_type loss_agg_mode", ""),
    ("advantage advantage_std", "scale_rewards norm_adv_by_std_in_grpo", ""),
    ("learner", "adv_estimator algorithm rl_algorithm", ""),
    ("gae_lambda", "lam lambda gae_lam", ""),
    ("entropy_coefficient", "entropy_coeff entropy_coef ent_coef", ""),
    ("mask_truncated", "mask_truncated_completions overlong_filter", ""),
    ("overlong_cache", "overlong_buffer_len soft_punish_cache", ""),
    (
        "reward",
        "reward_funcs reward_function reward_fn reward_functions custom_reward_function "
        "reward_weights",
        "NAME=WEIGHT, or mine.py:function",
    ),
    ("max_lora_rank", "lora_r lora_rank r rank lora_dim", ""),
    ("lora_alpha", "alpha", ""),
    ("adapter", "lora_model_dir peft_path lora_path adapter_path", ""),
    ("sampling_top_k", "generation_top_k", ""),
    (
        "actor_gpu_usage learner_gpu_usage",
        "gpu_memory_utilization vllm_gpu_memory_utilization",
        "shares of a card's memory",
    ),
    ("max_num_seqs", "vllm_max_num_seqs", ""),
    ("engine", "use_vllm fast_inference rollout_backend", "--engine vllm"),
    ("backend", "use_unsloth", "--backend unsloth"),
    ("dtype", "bf16 fp16 torch_dtype precision", "--dtype bfloat16"),
    ("eval_every", "eval_steps test_freq eval_interval evaluation_steps", ""),
    ("save_every checkpoint_every", "save_steps save_freq save_interval", ""),
    ("max_staleness", "async_level max_async_level staleness_threshold max_head_offpolicyness", ""),
    ("number_of_actors", "num_actors num_workers num_rollout_workers rollout_workers", ""),
    ("number_of_learners", "num_learners nproc_per_node n_gpus_per_node num_gpus", ""),
    ("ray_address", "nnodes num_nodes num_machines", ""),
    ("resume", "resume_from_checkpoint resume_path resume_mode", ""),
    ("run_name", "experiment_name name wandb_name", ""),
    ("output_dir", "default_local_dir save_dir checkpoint_dir ckpt_path log_dir", ""),
    (
        "actor_tensor_parallel",
        "tensor_parallel_size vllm_tensor_parallel_size tensor_model_parallel_size tp tp_size "
        "rollout_tp_size",
        "cards that each actor's vLLM is split over",
    ),
    ("seed", "random_state random_seed data_seed", ""),
)
OTHERS = {name: (ours.split(), about) for ours, names, about in TABLE for name in names.split()}

WITHOUT = {  # what needs no option here, or has none, and why
    "load_in_4bit": "the base is always in 4 bit",
    "load_in_8bit": "the base is always in 4 bit",
    "quantization": "the base is always in 4 bit",
    "qlora": "the base is always in 4 bit, under a LoRA",
    "use_peft": "what is trained is always a LoRA",
    "use_lora": "what is trained is always a LoRA",
    "logging_steps": "every step is logged",
    "packing": "sequences are packed wherever the model allows it",
    "sample_packing": "sequences are packed wherever the model allows it",
    "remove_padding": "sequences are packed wherever the model allows it",
    "use_remove_padding": "sequences are packed wherever the model allows it",
    "gradient_checkpointing": "on a card the backward pass always computes layers again",
    "use_gradient_checkpointing": "on a card the backward pass always computes layers again",
    "optim": "the optimiser is 8-bit Adam on a card, AdamW without one",
    "optimizer": "the optimiser is 8-bit Adam on a card, AdamW without one",
}


def answer(name: str, style: str) -> str | None:
    """What to say of an option of other systems, None where it is unknown; `style` shows ours,
    as in "--{}"."""
    key = name.rpartition(".")[2].replace("-", "_").lower()
    if key in WITHOUT:
        return f"{WITHOUT[key]}: leave it out"
    if key not in OTHERS:
        return None
    ours, about = OTHERS[key]
    named = " and ".join(style.format(each) for each in ours)
    return f"set {named}" + (f" ({about})" if about else "")
