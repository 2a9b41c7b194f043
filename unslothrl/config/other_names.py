"""What other systems call the options of a run, for those who come from there.

TRL's GRPOConfig 1.15, Unsloth's notebooks, verl 0.6, axolotl, Colossal-RL, RL2 and DistRL-LLM. A
dotted name is looked up whole first, then without what stands before each dot. For a name that
stands for several options of this package, all of them are given. docs/coming-from.md is made from
this file by tools/option_documents.py.
"""

from unslothrl.config.options import OPTIONS

TABLE = (  # our options, their names, what there is to know
    ("model", "base_model model_name model_name_or_path model_id pretrained model.path", ""),
    (
        "dataset",
        "datasets dataset_name train_files train_file train_dataset dataset_path train_data.path "
        "train_data_path",
        "",
    ),
    ("holdout", "val_set_size", ""),
    ("prompt_column", "prompt_key field_instruction", ""),
    ("answer_column", "answer_key field_output", ""),
    (
        "eval_dataset",
        "val_files val_file test_datasets eval_file test_data.path test_data_path",
        "",
    ),
    (
        "num_candidates",
        "num_generations n_samples_per_prompt rollout_n rollout.n group_size responses_per_prompt "
        "rollout_per_prompt",
        "",
    ),
    ("max_new_tokens", "max_completion_length max_response_length response_length max_tokens", ""),
    ("max_prompt_tokens", "max_prompt_length prompt_length", ""),
    (
        "max_prompt_tokens max_new_tokens",
        "max_seq_length max_length max_model_len vllm_max_model_len vllm_max_model_length "
        "sequence_len context_length",
        "prompt and completion have separate limits",
    ),
    ("lr", "learning_rate actor_lr actor_learning_rate", ""),
    ("critic_lr", "critic.optim.lr critic.optimizer.lr critic.lr", ""),
    ("lr_schedule", "lr_scheduler_type lr_scheduler scheduler scheduler.name warmup_style", ""),
    ("lr_floor", "min_lr_ratio cosine_min_lr_ratio lr_scheduler_kwargs", ""),
    (
        "warmup_steps",
        "warmup_ratio num_warmup_steps lr_warmup_steps lr_warmup_steps_ratio",
        "in steps",
    ),
    ("max_grad_norm", "grad_clip gradient_clipping max_norm", ""),
    (
        "train_batch_size",
        "micro_batch_size mini_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu "
        "train_microbatch_size max_length_per_device ppo_max_token_len_per_gpu",
        "completions in memory at once; changes nothing else",
    ),
    (
        "batch_size",
        "data.train_batch_size inference_batch_size train_prompts_per_rollout rollout_batch_size "
        "prompts_per_rollout num_prompts_per_step gen_batch_size data.batch_size",
        "prompts per step",
    ),
    (
        "batch_size num_candidates train_batch_size",
        "per_device_train_batch_size gradient_accumulation_steps generation_batch_size",
        "a step has batch_size prompts with num_candidates completions each, in micro-batches of "
        "train_batch_size completions",
    ),
    (
        "updates_per_rollout",
        "steps_per_generation ppo_mini_batch_size train_minibatch_size update_per_rollout",
        "optimiser steps per rollout",
    ),
    ("epochs_per_rollout", "num_iterations ppo_epochs num_ppo_epochs", ""),
    ("episodes", "num_train_epochs num_epochs total_epochs epochs n_epochs num_episodes", ""),
    ("max_steps", "total_training_steps num_steps total_steps max_iters", ""),
    (
        "kl kl_coefficient",
        "beta kl_coef kl_coeff kl_loss_coef init_kl_coef use_kl_loss kl.coef",
        "for example --kl loss --kl_coefficient 0.04",
    ),
    ("kl", "use_kl_in_reward kl.type", "for example --kl reward"),
    (
        "kl_estimator",
        "kl_penalty kl_loss_type kl.estimator kl.reward_estimator kl.loss_estimator",
        "",
    ),
    ("clip_low clip_high", "epsilon clip_ratio cliprange clip_eps actor.clip epsilon_clip", ""),
    ("value_clip", "cliprange_value critic.clip", ""),
    ("clip_low", "clip_ratio_low epsilon_low clip_eps_low", ""),
    ("clip_high", "clip_ratio_high epsilon_high clip_eps_high", ""),
    ("clip_dual", "delta clip_ratio_c", ""),
    ("ratio", "importance_sampling_level", ""),
    ("aggregation", "loss_type loss_agg_mode loss_variation avg_level", ""),
    (
        "advantage advantage_std",
        "scale_rewards norm_adv_by_std_in_grpo norm_var global_norm group_norm",
        "",
    ),
    ("learner", "adv_estimator adv.estimator algorithm rl_algorithm algo rl core_algo", ""),
    ("gae_lambda", "lam lambda lamda gae_lam", ""),
    ("entropy_coefficient", "entropy_coeff entropy_coef ent_coef entropy.coef", ""),
    ("mask_truncated", "mask_truncated_completions overlong_filter filter_truncated_response", ""),
    (
        "overlong_cache",
        "overlong_buffer_len soft_punish_cache cache_length soft_over_length_punishment",
        "",
    ),
    (
        "filter_low filter_high",
        "filter_range filter_groups dynamic_filtering accuracy_lower_bound accuracy_upper_bound",
        "accuracies of the groups to train on, e.g. 0.01 and 0.99",
    ),
    ("max_resample", "dynamic_batching max_num_gen_batches dynamic_sampling", ""),
    (
        "correction correction_high",
        "vllm_importance_sampling_correction vllm_importance_sampling_mode "
        "vllm_importance_sampling_cap vllm_importance_sampling_clip_max tis_coef tis_imp_ratio_cap",
        "on by default if the objective has it",
    ),
    ("correction_low", "vllm_importance_sampling_clip_min", ""),
    ("freeze_steps", "critic_warmup", ""),
    ("topk", "top_k_train", ""),
    ("environment", "env_path", ""),
    ("max_turns", "max_tool_calling_iterations", ""),
    (
        "reward",
        "reward_funcs reward_function reward_fn reward_functions custom_reward_function "
        "custom_reward_function.path reward_weights reward_type reward_fn_type reward_fn_path "
        "reward_manager reward_fn_key compute_score",
        "NAME=WEIGHT, or mine.py:function",
    ),
    ("max_lora_rank", "lora_r lora_rank r rank lora_dim", ""),
    ("lora_alpha", "alpha", ""),
    ("lora_dropout", "disable_dropout", ""),
    ("adapter", "lora_model_dir peft_path lora_path adapter_path", ""),
    ("sampling_top_k", "generation_top_k", ""),
    (
        "actor_gpu_usage learner_gpu_usage",
        "gpu_memory_utilization vllm_gpu_memory_utilization mem_fraction_static",
        "shares of a card's memory",
    ),
    ("max_num_seqs", "vllm_max_num_seqs per_device_eval_batch_size inference_microbatch_size", ""),
    (
        "engine",
        "use_vllm fast_inference rollout_backend rollout.name inference_backend",
        "--engine vllm",
    ),
    ("backend", "use_unsloth", "--backend unsloth"),
    (
        "dtype",
        "bf16 fp16 cast_lm_head_to_fp32 torch_dtype precision vllm_dtype",
        "--dtype bfloat16",
    ),
    (
        "eval_every",
        "eval_steps test_freq eval_interval evaluation_steps eval_strategy evals_per_epoch",
        "in steps",
    ),
    ("eval_candidates", "num_generations_eval val_kwargs.n", ""),
    ("eval_temperature", "val_kwargs.temperature test_sampling_params.temperature", ""),
    ("eval_temperature", "test_temperature", ""),
    ("eval_top_p", "val_kwargs.top_p", ""),
    ("temperature", "train_temperature", ""),
    (
        "save_every checkpoint_every",
        "save_steps save_freq save_interval save_strategy saves_per_epoch",
        "",
    ),
    ("max_staleness", "async_level max_async_level staleness_threshold max_head_offpolicyness", ""),
    (
        "number_of_actors",
        "num_actors num_workers num_rollout_workers rollout_workers num_inferencer num_producers",
        "",
    ),
    (
        "number_of_learners",
        "num_learners nproc_per_node n_gpus_per_node num_gpus num_trainers ddp_size deepspeed fsdp "
        "fsdp_config",
        "one card per learner; learners exchange gradients",
    ),
    ("offload", "offload_model offload_optimizer param_offload optimizer_offload", ""),
    ("partial_rollouts", "partial_rollout", "with --max_staleness"),
    ("ray_temp_dir", "ray_dir", ""),
    ("ray_node_ip", "master_address", ""),
    ("ray_port", "master_port", ""),
    ("ray_address", "nnodes num_nodes num_machines", ""),
    (
        "resume",
        "resume_from_checkpoint resume_path resume_mode resume_from_path load_ckpt_from",
        "",
    ),
    ("run_name", "experiment_name name wandb_name", ""),
    ("project_name", "project wandb_project", "of the trackers"),
    ("output_dir", "default_local_dir save_dir checkpoint_dir ckpt_path log_dir", ""),
    (
        "actor_tensor_parallel",
        "tensor_parallel_size vllm_tensor_parallel_size tensor_model_parallel_size tp tp_size "
        "rollout_tp_size producer_tensor_parallel_size rollout.tp_size",
        "cards over which each actor's vLLM is split",
    ),
    ("seed", "random_state random_seed data_seed", ""),
)
OTHERS = {name: (ours.split(), about) for ours, names, about in TABLE for name in names.split()}

IN_4_BIT = "the base is always in 4 bit"
LORA = "training always uses a LoRA, on all seven projections of every layer"
PACKED = "sequences are packed wherever the model allows it"
RECOMPUTED = "on a card the backward pass always recomputes layers"
ADAM = "the optimiser is 8-bit Adam on a card, AdamW without one"
OWN_ENGINES = "each actor starts its own vLLM: see --number_of_actors"
REFERENCE = "the reference is always what training begins with: the base, or --adapter"
FOLDER = "everything is in the run's folder (--output_dir, --run_name)"
LOGGED = "every step is in metrics.jsonl and report.html in the run's folder"
SAMPLED = "sampling has only temperature, top_p and sampling_top_k"
KEPT = "every saved adapter and the last two checkpoints are kept"
OWN_OBJECTIVE = "write it as an objective of your own: see docs/algorithms.md"
SHARDED = "a 4-bit base fits each learner's card: see --number_of_learners"

WITHOUT_TABLE = (  # what needs no option here, or has none, and why
    (IN_4_BIT, "load_in_4bit load_in_8bit load_in_fp8 load_in_16bit quantization qlora"),
    (
        LORA,
        "use_peft use_lora target_modules lora_target_modules lora_target_linear bias "
        "use_rslora full_finetuning loftq_config",
    ),
    (PACKED, "packing sample_packing remove_padding use_remove_padding pad_to_multiple_of"),
    (
        RECOMPUTED,
        "gradient_checkpointing gradient_checkpointing_kwargs use_gradient_checkpointing "
        "enable_gradient_checkpointing",
    ),
    (ADAM, "optim optimizer adam_beta1 adam_beta2 adam_epsilon"),
    (
        LOGGED,
        "logging_steps log_completions num_completions_to_print log_unique_prompts "
        "log_multimodal log_completions_hub_repo log_freq logging_strategy",
    ),
    (
        OWN_ENGINES,
        "vllm_mode vllm_server_host vllm_server_port vllm_server_base_url "
        "vllm_server_timeout vllm_group_port vllm_device vllm_enable_sleep_mode vllm_model_impl "
        "vllm_sampling_params vllm_enable_prefix_caching enforce_eager free_cache_engine",
    ),
    (REFERENCE, "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps ref_actor"),
    (FOLDER, "logging_dir eval_save_dir rollout_save_dir rollout_data_dir validation_data_dir"),
    (
        SAMPLED,
        "min_p vllm_structured_outputs_regex repetition_penalty generation_kwargs "
        "cache_implementation do_sample",
    ),
    (
        KEPT,
        "save_total_limit load_best_model_at_end metric_for_best_model keep_last_x "
        "max_actor_ckpt_to_keep max_checkpoints",
    ),
    (
        OWN_OBJECTIVE,
        "top_entropy_quantile off_policy_mask_threshold use_bias_correction_kl "
        "use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta "
        "entropy_target vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg "
        "sapo_temperature_neg sapo_temperature_pos policy_loss loss_mode",
    ),
    (
        SHARDED,
        "pipeline_parallel_size zero_stage cp_size sp_size ulysses_sequence_parallel_size "
        "plugin ds3_gather_for_generation",
    ),
    ("the order of prompts depends only on --seed", "shuffle_dataset shuffle"),
    (
        "the attention kernel is chosen for the card",
        "flash_attention use_liger_kernel use_liger attn_implementation",
    ),
    ("runs are identified by their folder", "hub_model_id"),
    ("rewards are added with their weights", "multi_objective_aggregation"),
    ("the model's chat template is used as it is", "chat_template_kwargs chat_template"),
    ("code that comes with a model is never run", "trust_remote_code model_init_kwargs"),
    (
        "transformers is an engine of its own: see --engine",
        "use_transformers_paged use_transformers_continuous_batching "
        "transformers_continuous_batching_config",
    ),
    ("there is always one, unless eval_every is 0", "eval_on_start val_before_train"),
)
WITHOUT = {name: why for why, names in WITHOUT_TABLE for name in names.split()}
NAMES = tuple(sorted({*OTHERS, *WITHOUT}))


def keys(name: str) -> list[str]:
    """A dotted name, and what is left of it without what stands before each dot."""
    parts = name.replace("-", "_").lower().split(".")[-8:]
    return [".".join(parts[i:]) for i in range(len(parts))]


def ours(name: str) -> list[str]:
    """Our options for a name of other systems; [] where there are none."""
    for key in keys(name):
        if key in OTHERS:
            return OTHERS[key][0]
        if key in WITHOUT:
            return []
        if key in OPTIONS and key != name:
            return [key]
    return []


def answer(name: str, style: str) -> str | None:
    """What to say of an option of other systems, None where it is unknown; `style` shows ours,
    as in "--{}"."""
    for key in keys(name):
        if key in WITHOUT:
            return f"{WITHOUT[key]}: leave it out"
        if key in OTHERS:
            break
    else:
        key = ""
    found = ours(name)
    if not found:
        return None
    named = " and ".join(style.format(each) for each in found)
    about = OTHERS[key][1] if key else ""
    return f"set {named}" + (f" ({about})" if about else "")
