"""What clusters do to a job: missing rights, quotas, an API server that goes away, namespaces and jobs deleted."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from drumroll_operator.cluster import EVENTS, PODS, RLJOBS, ApiError, Kind, Raw

from drumroll.testing import eventually

pytestmark = pytest.mark.cluster
QUOTAS = Kind("ResourceQuota", "v1", "resourcequotas")
ROLES = Kind("Role", "rbac.authorization.k8s.io/v1", "roles")
BINDINGS = Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings")
ACCOUNTS = Kind("ServiceAccount", "v1", "serviceaccounts")
RULES = Path(__file__).parents[3] / "deploy/helm/drumroll/templates/_rules.tpl"


def chart_rules() -> list[Raw]:
    """What the chart grants where jobs are."""
    text = RULES.read_text()
    rules: list[Raw] = yaml.safe_load(text.partition('"drumroll.jobRules" -}}')[2].partition("{{- end }}")[0])
    return rules


async def post(stage: Any, kind: Kind, name: str, **body: Any) -> Raw:
    raw = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}, **body}
    return await stage.admin._call("create", "POST", kind, stage.namespace, body=raw)


async def grant(stage: Any, rules: list[Raw]) -> None:
    """Give the account `limited` these rights and no others."""
    patch = {"rules": rules}
    await stage.admin.merge(ROLES, stage.namespace, "limited", patch)


@pytest.fixture
def admin_config(api_server: Any) -> Raw:
    config: Raw = yaml.safe_load(Path(api_server.environment["KUBECONFIG"]).read_text())
    return config


@pytest.fixture
async def limited(stage: Any, admin_config: Raw, tmp_path: Path) -> str:
    """Kubeconfig of an account with the chart's rights in the stage's namespace."""
    await post(stage, ACCOUNTS, "limited")
    await post(stage, ROLES, "limited", rules=chart_rules())
    subject = {"kind": "ServiceAccount", "name": "limited", "namespace": stage.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"}
    await post(stage, BINDINGS, "limited", roleRef=reference, subjects=[subject])
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await stage.admin._call(
        "create", "POST", ACCOUNTS, stage.namespace, "limited", subresource="token", body=asked
    )
    config = dict(admin_config)
    config["users"] = [{"name": user["name"], "user": {"token": answer["status"]["token"]}} for user in config["users"]]
    file = tmp_path / "limited.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return str(file)


async def test_rights_in_the_namespace_are_enough_k8(
    stage: Any, run_operator: Any, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_operator(kubeconfig=limited) as operator:
        await stage.submit()
        await stage.until_running()
        assert operator.health.unready() == {}
        assert operator.health.dead() == {}

        async def told() -> bool:
            return any(event["reason"] == "Ready" for event in await stage.all(EVENTS))

        await eventually(told)
        await stage.complete()
        await stage.until_phase("Complete")
    said = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert not [text for text in said if "orbidden" in text], said


async def test_a_missing_right_is_named_in_the_condition_k8(stage: Any, run_operator: Any, limited: str) -> None:
    fewer = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create" or rule["resources"] != ["pods"]]}
        for rule in chart_rules()
    ]
    await grant(stage, fewer)
    async with run_operator(kubeconfig=limited):
        await stage.submit()

        async def named() -> str:
            condition = await stage.condition("Admitted")
            message = str(condition.get("message", ""))
            return message if condition.get("status") == "False" and "create" in message else ""

        assert "create pods" in await eventually(named, 15.0)
        assert await stage.uids() == {}


async def test_an_operator_that_may_not_see_the_jobs_says_so_and_works_once_it_may_k8(
    stage: Any, run_operator: Any, limited: str
) -> None:
    await grant(stage, [rule for rule in chart_rules() if rule["resources"] != ["rljobs"]])
    await stage.submit()
    async with run_operator(kubeconfig=limited, resync_every_s=0.5) as operator:
        await eventually(lambda: "list rljobs" in operator.health.unready().get("rljobs", ""), 10.0)
        await grant(stage, chart_rules())
        await stage.until_running()


async def test_jobs_run_without_the_right_to_post_events_k8(
    stage: Any, run_operator: Any, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    await grant(stage, [rule for rule in chart_rules() if rule["apiGroups"] != ["events.k8s.io"]])
    async with run_operator(kubeconfig=limited):
        await stage.submit()
        await stage.until_running()
        await stage.complete()
        await stage.until_phase("Complete")
    warnings = [record for record in caplog.records if "Events cannot be posted" in record.getMessage()]
    assert len(warnings) == 1


async def test_a_quota_holds_back_extra_replicas_until_it_is_raised_k2(stage: Any, run_operator: Any) -> None:
    await post(stage, QUOTAS, "small", spec={"hard": {"pods": "3"}})

    async def in_force() -> bool:
        return "hard" in (await stage.get(QUOTAS, "small")).get("status", {})

    await eventually(in_force, 15.0)
    async with run_operator() as operator:
        await stage.submit(rollout={"replicas": 4})

        async def refused() -> str:
            condition = await stage.condition("Admitted")
            return str(condition.get("message")) if condition.get("status") == "False" else ""

        message = await eventually(refused, 15.0)
        assert "exceeded quota: small" in message
        assert sorted(await stage.uids()) == ["job-scheduler", "job-store", "job-trainer-0"]
        tries = "drumroll_operator_action_seconds_count"
        labels = {"action": "CreatePod", "result": "Quota"}
        before = operator.metrics.registry.get_sample_value(tries, labels)
        await asyncio.sleep(4.0)  # Long enough to see a loop without back-off, which would try dozens of times.
        after = operator.metrics.registry.get_sample_value(tries, labels)
        assert (after or 0) - (before or 0) <= 1
        notes = [event["note"] for event in await stage.all(EVENTS) if event["reason"] == "QuotaExceeded"]
        assert len(notes) <= 1
        await stage.admin.merge(QUOTAS, stage.namespace, "small", {"spec": {"hard": {"pods": "10"}}})
        await stage.until_running()
        assert len(await stage.uids()) == 7


async def test_a_job_made_again_under_its_name_adopts_nothing_old(stage: Any, run_operator: Any) -> None:
    async with run_operator():
        first = await stage.submit()
        await stage.until_running()
        old = set((await stage.uids()).values())
        stage.held = {"job-store", "job-rollout-0"}  # Their deletion takes its time.
        await stage.admin.delete(RLJOBS, stage.namespace, "job")
        second = await stage.submit()
        assert second["metadata"]["uid"] != first["metadata"]["uid"]

        async def held() -> bool:
            pods = await stage.all(PODS)
            return {pod["metadata"]["name"] for pod in pods if pod["metadata"]["uid"] in old} == stage.held

        await eventually(held, 20.0, "the garbage collector's deletions")
        stage.held = set()
        for name in ("job-store", "job-rollout-0"):
            await stage.admin.delete(PODS, stage.namespace, name, grace_s=0)
        await stage.until_running()
        pods = await stage.all(PODS)
        assert not old & {pod["metadata"]["uid"] for pod in pods}
        assert {pod["metadata"]["labels"]["drumroll.dev/uid"] for pod in pods} == {second["metadata"]["uid"]}


async def test_a_namespace_deleted_under_a_running_job_goes(stage: Any, run_operator: Any) -> None:
    namespaces = Kind("Namespace", "v1", "namespaces")
    async with run_operator() as operator:
        await stage.submit()
        await stage.until_running()
        await stage.admin._call("delete", "DELETE", namespaces, None, stage.namespace)

        async def gone() -> bool:
            try:
                await stage.admin._call("get", "GET", namespaces, None, stage.namespace)
            except ApiError as error:
                return error.code == 404
            return False

        await eventually(gone, 40.0, "the namespace is gone")
        await eventually(lambda: len(operator.pods) == 0 and len(operator.jobs) == 0, 15.0)
        assert operator.health.dead() == {}
