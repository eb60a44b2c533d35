"""The learner: parameters and optimizer of one rank, with the few operations that the trainer is made of.

Every method is called on all ranks in the same order with the same arguments. Nothing random is drawn: parameters are
a function of the starting model and the samples, bit for bit on a CPU with the same number of ranks and threads.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.utils.deterministic

from drumroll.job import ResolvedJob
from drumroll_trainer.advantages import group_advantages
from drumroll_trainer.batch import plan_batch
from drumroll_trainer.learner import checkpoint
from drumroll_trainer.learner.export import collect
from drumroll_trainer.learner.fsdp import World, forget_gathered, shard
from drumroll_trainer.learner.loss import LossSettings
from drumroll_trainer.learner.model import PolicyModel, load_policy
from drumroll_trainer.learner.optimizer import learning_rate, make_optimizer, set_learning_rate
from drumroll_trainer.learner.step import Networks, accumulate, apply
from drumroll_trainer.sequences import StepSequences, lag_facts, length_facts

logger = logging.getLogger(__name__)


class Learner:
    """See the module. `restore` comes first."""

    def __init__(self, job: ResolvedJob, world: World) -> None:
        self._job = job
        self.world = world
        algorithm = job.spec.algorithm
        self._settings = LossSettings(
            clip_eps=algorithm.clip_eps,
            clip_eps_high=algorithm.clip_eps_high,
            rollout_is=algorithm.rollout_is,
            rollout_is_threshold=algorithm.rollout_is_threshold,
            kl_coef=algorithm.kl_coef,
            kl_estimator=algorithm.kl_estimator,
        )
        self._networks: Networks
        self._optimizer: torch.optim.Optimizer
        make_deterministic(job, world)

    @property
    def policy(self) -> PolicyModel:
        """The network."""
        return self._networks.policy

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW."""
        return self._optimizer

    @property
    def vocab_size(self) -> int:
        """Token ids from here on do not exist."""
        return int(self.policy.config.get_text_config().vocab_size)

    def restore(self, folder: Path | None) -> None:
        """Start from the model directory, or from a checkpoint's parameters and optimizer state.

        Raises:
            JobError: the model cannot be loaded.
            CorruptError: the checkpoint is refused.
        """
        torch.manual_seed(self._job.spec.seed)
        half = self._job.spec.model.dtype != "float32"
        policy = shard(self._load(), self.world, half_precision=half)
        reference = None
        if self._job.spec.algorithm.kl_coef > 0:
            reference = shard(self._load().requires_grad_(False), self.world, half_precision=half)
        self._networks = Networks(policy, reference, self.world, half)
        # Name order, so that the optimizer's order is no accident of the model's code.
        self._optimizer = make_optimizer([p for _, p in policy.own_parameters()], self._job.spec.algorithm)
        if folder is not None:
            checkpoint.load(folder, checkpoint.tensors_of(policy, self._optimizer))

    def train(self, step: StepSequences, index: int) -> dict[str, float]:
        """Take optimizer step `index` on a step's sequences; returns its statistics (peers' names, slash keys)."""
        spec = self._job.spec
        groups, rewards = step.sample_rewards
        found = group_advantages(rewards, groups, norm=spec.algorithm.advantage_norm)
        places = {sample: place for place, sample in enumerate(sorted({s.sample for s in step.sequences}))}
        plan = plan_batch(
            step.sequences,
            [float(found.values[places[s.sample]]) for s in step.sequences],
            mask_below=step.mask_below,
            token_budget=spec.trainer.max_tokens_per_micro_batch,
            world_size=self.world.size,
        )
        self._optimizer.zero_grad(set_to_none=True)
        batches = plan.micro_batches(self.world.rank)
        stats = accumulate(self._networks, batches, self._settings, num_tokens=plan.num_trained, version=step.version)
        rate = learning_rate(spec.algorithm, index)
        set_learning_rate(self._optimizer, rate)
        # Without a token there is no gradient; the moments of earlier steps must not move the parameters.
        norm = (
            apply(self._networks, self._optimizer, max_grad_norm=spec.algorithm.max_grad_norm)
            if plan.num_trained
            else 0.0
        )
        return (
            stats
            | length_facts(step)
            | lag_facts(step)
            | {
                "actor/grad_norm": norm,
                "actor/lr": rate,
                "groups/zero_variance_share": found.num_without_variance / max(1, found.num_groups),
                "tokens/trained": float(plan.num_trained),
                "tokens/masked": float(plan.num_masked),
                "tokens/total": float(plan.num_tokens),
                "micro_batches": float(sum(len(rank) for rank in plan.bins)),
            }
        )

    def collect(self) -> dict[str, torch.Tensor]:
        """The weights as they are published, on rank 0; empty on the others."""
        return collect(self.policy, getattr(torch, self._job.spec.model.dtype), keep=self.world.rank == 0)

    @torch.no_grad()
    def probe(self, token_ids: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first, with the weights as engines get them: in the job's dtype."""
        device, count = self.world.device, len(token_ids)
        tokens = torch.tensor(token_ids, device=device)
        masters = self._round_parameters()
        try:
            with self._networks.arithmetic():
                logprobs, _ = self.policy(
                    tokens,
                    torch.arange(count, device=device),
                    (count,),
                    torch.arange(count - 1, device=device),
                    tokens[1:],
                    torch.ones(count - 1, device=device),
                )
        finally:
            forget_gathered(self.policy)
            for parameter, master in masters:
                parameter.copy_(master)
        return [float(value) for value in logprobs]

    def save(self, folder: Path) -> None:
        """Write parameters and optimizer state into an empty folder."""
        checkpoint.save(folder, checkpoint.tensors_of(self.policy, self._optimizer))

    def rng_state(self) -> str:
        """torch's random state, hexadecimal."""
        return bytes(torch.get_rng_state().tolist()).hex()

    def _load(self) -> PolicyModel:
        spec = self._job.spec
        return load_policy(
            Path(self._job.layout.model_dir),
            device=self.world.device,
            gradient_checkpointing=spec.trainer.gradient_checkpointing,
            trust_remote_code=spec.model.trust_remote_code,
        )

    def _round_parameters(self) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Round the parameters to the published dtype in place; returns what they were."""
        dtype = getattr(torch, self._job.spec.model.dtype)
        if dtype == torch.float32:
            return []
        masters = []
        for parameter in self.policy.parameters():
            masters.append((parameter, parameter.detach().clone()))
            parameter.copy_(parameter.to(dtype).to(parameter.dtype))
        return masters


def make_deterministic(job: ResolvedJob, world: World) -> None:
    """Fixed threads and fixed algorithms where torch has them for this device."""
    if world.device.type != "cpu":
        return
    if job.spec.trainer.threads is not None:
        torch.set_num_threads(job.spec.trainer.threads)
    torch.use_deterministic_algorithms(True)
    # Nothing reads memory that nobody wrote; filling it costs a twentieth of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property
