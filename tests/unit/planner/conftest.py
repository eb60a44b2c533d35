"""Rules and worlds for the tests of the policy."""

from collections.abc import Callable

import pytest
from drumroll_planner.audit import AuditReport, CheckpointFacts, audit
from drumroll_planner.policy import Rules
from drumroll_planner.world import World

RULES = Rules(
    num_prompts=12,
    group_size=2,
    prompts_per_step=4,
    max_policy_lag=2,
    target_policy_lag=1,
    lag_policy="wait",
    steps=8,
    epochs=None,
    max_attempts=3,
    max_failed_tickets=0.01,
    lease_term_s=10.0,
    dynamic_sampling=False,
    max_sampling_tries=10,
    order="plan",
    max_stream_bytes=10**9,
    keep_versions=2,
)


@pytest.fixture(scope="session")
def rules() -> Rules:
    return RULES


@pytest.fixture(scope="session")
def audited() -> Callable[[World], AuditReport]:
    """Audits a world's journal against its trainer's newest checkpoint."""

    def run(world: World) -> AuditReport:
        newest = world.trainer.checkpoints[-1]
        facts = CheckpointFacts(newest.step, newest.version, newest.lineage)
        return audit(world.journal, rules=world.rules, checkpoint=facts)

    return run
