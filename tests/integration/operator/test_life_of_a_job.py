"""A job from its submission to its end, on a real API server with a played node."""

from typing import Any

import pytest
from drumroll_operator.cluster import CONFIG_MAPS, PODS

from drumroll.testing import eventually

pytestmark = pytest.mark.cluster


async def test_a_job_runs_shows_its_progress_and_completes(stage: Any, run_operator: Any) -> None:
    async with run_operator():
        await stage.submit()
        await stage.until_running()
        assert sorted(await stage.uids()) == [
            "job-rollout-0",
            "job-rollout-1",
            "job-scheduler",
            "job-store",
            "job-trainer-0",
        ]
        stage.train(3)

        async def at_step_3() -> bool:
            return bool((await stage.job())["status"].get("step") == 3)

        await eventually(at_step_3, 15.0)
        assert len(stage.scheduler.tokens) == 1
        await stage.complete()
        await stage.until_phase("Complete")

        async def only_ended_pods() -> bool:
            return all(pod["status"]["phase"] == "Succeeded" for pod in await stage.all(PODS))

        await eventually(only_ended_pods, message="what ran is gone, what has ended is kept for its logs")
        assert len(await stage.uids()) == 4
        assert (await stage.condition("Complete"))["status"] == "True"
        assert len(await stage.all(CONFIG_MAPS)) >= 1
