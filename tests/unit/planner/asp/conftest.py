"""Fleets, rules and outlooks for the planner's tests."""

from collections.abc import Callable

import numpy as np
import pytest
from drumroll_planner.asp import FleetModel
from drumroll_planner.costs import CostModel
from drumroll_planner.lengths import Outlook
from drumroll_planner.lengths.outlook import NORMAL_SHAPE
from drumroll_planner.plan import PassInputs
from drumroll_planner.rules import Rules

COSTS = CostModel(
    name="test", step_s=0.01, sequence_s=1e-5, prefill_s=1e-6, publish_pause_s=0.05, train_step_s=0.05, publish_s=0.02
)


@pytest.fixture(scope="session")
def fleet() -> FleetModel:
    return FleetModel((COSTS,) * 4, max_concurrent=128, checkpoint_every=1000, micro_batch=4)


@pytest.fixture(scope="session")
def job_rules() -> Rules:
    return Rules(
        num_prompts=512,
        group_size=4,
        prompts_per_step=16,
        max_policy_lag=1,
        target_policy_lag=1,
        lag_policy="wait",
        steps=None,
        epochs=4,
        max_attempts=3,
        max_failed_tickets=0.01,
        lease_term_s=60.0,
        dynamic_sampling=False,
        max_sampling_tries=1,
        order="plan",
        max_stream_bytes=1 << 40,
        keep_versions=4,
    )


@pytest.fixture(scope="session")
def make_outlook() -> Callable[..., Outlook]:
    """Log-normal prompts: `make_outlook(num, seed=0, between=0.9)`."""

    def make(num: int, *, seed: int = 0, between: float = 0.9, doubt: float = 0.1, limit: int = 8192) -> Outlook:
        mean = np.random.default_rng(seed).normal(5.5, between, num).astype(np.float32)
        return Outlook(mean, np.full(num, doubt, np.float32), np.full(num, 0.3, np.float32), limit, NORMAL_SHAPE)

    return make


@pytest.fixture(scope="session")
def make_inputs() -> Callable[..., PassInputs]:
    def make(num: int, outlook: Outlook | None = None, *, seed: int = 0, epoch: int = 1) -> PassInputs:
        return PassInputs(epoch, num, seed, np.full(num, 40, np.int32), np.zeros(0, np.float32), outlook)

    return make
