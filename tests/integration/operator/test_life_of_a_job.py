"""A job from its submission to its end, on a real API server with a played node."""

import asyncio
from typing import Any

import pytest
from drumroll_operator.cluster import CONFIG_MAPS, EVENTS, PODS, RLJOBS

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


async def test_replicas_and_steps_change_while_the_job_runs(stage: Any, run_operator: Any) -> None:
    async with run_operator():
        await stage.submit()
        await stage.until_running()
        before = await stage.uids()
        spec = {"steps": 9, "rollout": {"replicas": 4}}
        await stage.admin.merge(RLJOBS, stage.namespace, "job", {"spec": spec})
        await eventually(lambda: stage.scheduler.live == {"steps": 9, "replicas": 4}, 15.0)

        async def replicas(count: int) -> bool:
            return sum("rollout" in name for name in await stage.uids()) == count

        await eventually(lambda: replicas(4), 15.0)
        await stage.admin.merge(RLJOBS, stage.namespace, "job", {"spec": {"rollout": {"replicas": 1}}})
        await eventually(lambda: replicas(1), 15.0)
        after = await stage.uids()
        assert {name: before[name] for name in ("job-store", "job-scheduler", "job-trainer-0")} == {
            name: uid for name, uid in after.items() if "rollout" not in name
        }
        config = (await stage.job())["status"]["config"]
        assert config in {raw["metadata"]["name"] for raw in await stage.all(CONFIG_MAPS)}


async def test_a_suspended_job_keeps_its_store_and_goes_on_k10(stage: Any, run_operator: Any) -> None:
    async with run_operator():
        await stage.submit()
        await stage.until_running()
        before = await stage.uids()
        await stage.admin.merge(RLJOBS, stage.namespace, "job", {"spec": {"suspend": True}})
        await stage.until_phase("Suspended")

        async def only_the_store() -> bool:
            return await stage.uids() == {"job-store": before["job-store"]}

        await eventually(only_the_store, 15.0)
        version = (await stage.job())["metadata"]["resourceVersion"]
        await stage.admin.merge(RLJOBS, stage.namespace, "job", {"metadata": {"labels": {"seen": "yes"}}})
        await asyncio.sleep(1.5)
        now = await stage.job()
        assert int(now["metadata"]["resourceVersion"]) > int(version)
        assert now["status"]["phase"] == "Suspended"
        await stage.admin.merge(RLJOBS, stage.namespace, "job", {"spec": {"suspend": False}})
        await stage.until_running()
        assert (await stage.condition("Suspended"))["status"] == "False"
        assert (await stage.uids())["job-store"] == before["job-store"]


async def test_a_users_long_last_words_reach_the_status_and_an_event_k12(stage: Any, run_operator: Any) -> None:
    words = "奖励" * 1_500 + "\nValueError: reward.py has no function `score`"
    async with run_operator():
        await stage.submit()
        await stage.until_running()
        await stage.end_pod("job-rollout-0", 2, message=words[-2_000:])
        await stage.until_phase("Failed")
        failed = await stage.condition("Failed")
        assert failed["reason"] == "UserError"
        assert "no function `score`" in failed["message"]

        async def posted() -> list[str]:
            return [event["note"] for event in await stage.all(EVENTS) if event["reason"] == "UserError"]

        notes = await eventually(posted, 10.0)
        assert all(len(note) <= 1024 and "no function `score`" in note for note in notes)
