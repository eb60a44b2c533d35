"""Names that people write for fields of the RLJob: misspelt, in snake_case, misplaced, or as in other tools."""

import re
from difflib import get_close_matches

from drumroll.api.tree import children, models_by_path, spec_nodes

PEERS: dict[str, tuple[str, ...]] = {
    "spec.algorithm.groupSize": ("num_generations", "n", "n_samples_per_prompt", "rollout_n", "num_samples"),
    "spec.algorithm.promptsPerStep": ("batch_size", "train_batch_size", "rollout_batch_size", "global_batch_size"),
    "spec.algorithm.learningRate": ("lr", "actor_lr"),
    "spec.algorithm.warmupSteps": ("lr_warmup_steps", "num_warmup_steps", "warmup_ratio"),
    "spec.algorithm.maxGradNorm": ("grad_clip", "clip_grad", "max_norm", "gradient_clipping"),
    "spec.algorithm.clipEps": ("epsilon", "eps_clip", "clip_ratio", "clip_ratio_low", "cliprange", "epsilon_low"),
    "spec.algorithm.clipEpsHigh": ("epsilon_high", "eps_clip_higher", "eps_clip_high", "clip_ratio_high"),
    "spec.algorithm.klCoef": ("beta", "kl_beta", "kl_loss_coef", "init_kl_coef", "kl_penalty_coef"),
    "spec.algorithm.klEstimator": ("kl_loss_type", "kl_type"),
    "spec.algorithm.type": ("adv_estimator", "advantage_estimator"),
    "spec.algorithm.rolloutIs": ("use_tis", "tis", "importance_sampling"),
    "spec.algorithm.rolloutIsThreshold": ("tis_clip", "tis_imp_ratio_cap", "rollout_is_clip"),
    "spec.algorithm.dynamicSampling": ("filter_groups", "dynamic_filter", "dapo"),
    "spec.algorithm.maxSamplingTries": ("max_num_gen_batches",),
    "spec.algorithm.advantageNorm": ("scale_rewards", "norm_adv_by_std_in_grpo"),
    "spec.maxPolicyLag": (
        "max_staleness",
        "max_staleness_steps",
        "max_head_offpolicyness",
        "max_off_policy_steps",
        "max_off_policy_threshold",
        "max_trajectory_age_steps",
        "max_lag",
    ),
    "spec.targetPolicyLag": ("target_lag",),
    "spec.lagPolicy": ("max_off_policy_strategy", "staleness_policy"),
    "spec.steps": ("max_steps", "total_steps", "num_steps", "num_train_steps", "total_training_steps"),
    "spec.epochs": ("num_epochs", "total_epochs", "num_train_epochs", "num_episodes"),
    "spec.weights.publishEverySteps": (
        "weight_sync_steps",
        "parameter_sync_step",
        "trigger_parameter_sync_step",
        "update_weights_interval",
        "weight_update_interval",
    ),
    "spec.rollout.maxConcurrentSamples": (
        "max_concurrent_rollouts",
        "num_parallel_generation_workers",
        "max_inflight_tasks",
        "max_inflight_prompts",
        "max_num_seqs",
    ),
    "spec.rollout.partialEveryTokens": ("partial_rollout", "partial_rollouts"),
    "spec.rollout.tensorParallelSize": ("tensor_model_parallel_size", "tp", "tp_size", "rollout_tp"),
    "spec.rollout.replicas": ("num_replicas", "num_workers", "num_engines", "workers"),
    "spec.rollout.resources": ("gpus", "num_gpus", "gpu"),
    "spec.rollout.engine.maxBatchedTokens": ("max_num_batched_tokens",),
    "spec.rollout.engine.prefixCaching": ("enable_prefix_caching",),
    "spec.data.maxPromptTokens": ("max_prompt_length", "max_prompt_len", "prompt_length"),
    "spec.data.maxResponseTokens": (
        "max_completion_length",
        "max_response_length",
        "max_new_tokens",
        "max_tokens",
        "response_length",
        "generate_max_len",
    ),
    "spec.data.train.path": ("train_files", "train_file", "dataset", "dataset_name", "prompt_data"),
    "spec.data.eval.path": ("val_files", "eval_file", "validation", "test_files", "eval_dataset"),
    "spec.data.eval.everySteps": ("eval_steps", "test_freq", "eval_interval"),
    "spec.data.eval.samplesPerPrompt": ("n_samples_per_eval_prompt", "eval_n"),
    "spec.model.path": ("model_name_or_path", "model_path", "pretrain", "hf_checkpoint", "model_name"),
    "spec.reward.function": ("reward_funcs", "reward_function", "reward_fn", "custom_reward_function"),
    "spec.trainer.maxTokensPerMicroBatch": (
        "ppo_max_token_len_per_gpu",
        "max_tokens_per_gpu",
        "micro_batch_size",
        "micro_train_batch_size",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
    ),
    "spec.trainer.processesPerReplica": ("nproc_per_node", "n_gpus_per_node"),
    "spec.trainer.checkpoint.everySteps": ("save_steps", "save_freq", "save_interval", "checkpoint_steps"),
    "spec.trainer.checkpoint.keep": ("save_total_limit", "max_ckpt_num", "max_actor_ckpt_to_keep"),
    "spec.resumeFrom": ("resume_from_checkpoint", "load_checkpoint", "resume_from_path"),
}


_POWERS = {
    "hostPath": "paths of the node are not for pods of a job: write persistentVolumeClaim or image",
    "securityContext": "it would change what pods may do, which is fixed; write spec.securityContext for their user",
    "serviceAccountName": "pods of a job have no service account: leave it out",
    "automountServiceAccountToken": "pods of a job have no service account: leave it out",
    "hostNetwork": "pods of a job stay out of the node's namespaces: leave it out",
    "hostPID": "pods of a job stay out of the node's namespaces: leave it out",
    "hostIPC": "pods of a job stay out of the node's namespaces: leave it out",
    "privileged": "pods of a job have no privileges: leave it out",
    "containers": "the role's container is Drumroll's own: write what it may be given beside podTemplatePatch, such as "
    "image, env and resources",
    "csi": "a volume of a driver's own is not listed here: write persistentVolumeClaim",
    "nfs": "a volume of a server's own is not listed here: write persistentVolumeClaim",
}
"""What pods could be given elsewhere and cannot here, with what to write instead."""
_POD_PLACES = re.compile(r"podTemplatePatch|^spec\.volumes")


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()


_FIELD_OF_PEER = {_plain(name): path for path, names in PEERS.items() for name in names}


def advise(place: str, name: str) -> str:
    """What to write instead of the unknown field `name` of the object at `place` (a path with `[]` for items)."""
    if _POD_PLACES.search(place) and name in _POWERS:
        return _POWERS[name]
    siblings = {_plain(node.name): node.name for node in children(models_by_path()[place], "")}
    plain = _plain(name)
    if plain in siblings:
        return f"names are written in camelCase: write {siblings[plain]}"
    if plain in _FIELD_OF_PEER and (path := _FIELD_OF_PEER[plain]).rpartition(".")[2] != name:
        return f"it is called {path.rpartition('.')[2]} here: write {path}"
    elsewhere = [node.path for node in spec_nodes().values() if _plain(node.name) == plain]
    if elsewhere:
        return f"it has another place: write {' or '.join(elsewhere[:3])}"
    if near := get_close_matches(plain, siblings, n=1, cutoff=0.6):
        return f"did you mean {siblings[near[0]]}?"
    leaves = {_plain(node.name): node.path for node in reversed(spec_nodes().values())}
    if near := get_close_matches(plain, leaves, n=1, cutoff=0.8):
        return f"did you mean {leaves[near[0]]}?"
    return f"known here are {', '.join(siblings.values())}"
