"""podTemplatePatch is an allow-list: nothing in it makes a pod more powerful, and refusals say what to write."""

from collections.abc import Callable
from typing import Any

import pytest

from drumroll.api.loading import parse_jobs
from drumroll.api.tree import spec_nodes

ROLES = ("rollout", "trainer", "scheduler", "stream.embedded")
POWERS = {
    "hostPath", "hostNetwork", "hostPID", "hostIPC", "hostUsers", "privileged", "serviceAccountName", "serviceAccount",
    "automountServiceAccountToken", "capabilities", "allowPrivilegeEscalation", "procMount", "seccompProfile",
    "sysctls", "seLinuxOptions", "appArmorProfile", "nodeName", "volumeDevices", "lifecycle", "shareProcessNamespace",
    "projected", "csi", "nfs", "iscsi", "ephemeral",
}  # fmt: skip


def volume(name: str, path: str) -> dict[str, Any]:
    return {"spec.volumes": [{"name": name, "mountPath": path, "configMap": {"name": "c"}}]}


@pytest.mark.parametrize("role", ROLES)
def test_no_field_of_a_patch_gives_power(role: str) -> None:
    names = {node.name for node in spec_nodes().values() if node.path.startswith(f"spec.{role}.podTemplatePatch.")}
    assert names >= {"nodeSelector", "tolerations", "affinity", "initContainers", "volumeMounts"}
    assert not names & (POWERS | {"securityContext"})


def test_all_roles_have_the_same_patch() -> None:
    def below(role: str) -> set[str]:
        prefix = f"spec.{role}.podTemplatePatch"
        return {path.removeprefix(prefix) for path in spec_nodes() if path.startswith(prefix)}

    assert len({frozenset(below(role)) for role in ROLES}) == 1


@pytest.mark.parametrize(
    ("patch", "field", "advice"),
    [
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork", "leave it out"),
        ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName", "leave it out"),
        ({"spec": {"securityContext": {}}}, "spec.securityContext", "write spec.securityContext"),
        ({"spec": {"containers": []}}, "spec.containers", "beside podTemplatePatch"),
        ({"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}, "spec.volumes[0].hostPath", "write"),
        (
            {"spec": {"initContainers": [{"name": "a", "image": "i", "securityContext": {"privileged": True}}]}},
            "spec.initContainers[0].securityContext",
            "write spec.securityContext",
        ),
        ({"spec": {"node_selector": {}}}, "spec.node_selector", "write nodeSelector"),
        ({"metadata": {"finalizers": []}}, "metadata.finalizers", "known here are labels, annotations"),
    ],
)
def test_what_is_not_listed_is_refused(
    patch: dict[str, Any], field: str, advice: str, job_text: Callable[..., str]
) -> None:
    loaded = parse_jobs(job_text({"spec.trainer.podTemplatePatch": patch}), "job.yaml")
    problem = next(p for p in loaded.problems if p.field == f"spec.trainer.podTemplatePatch.{field}")
    assert problem.message.startswith("there is no such field: ")
    assert advice in problem.message
    assert not loaded.jobs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec.trainer.image": "my image"}, "is not an image: write registry/name:tag"),
        (volume("A", "/x"), "is not a name: write at most"),
        (volume("a", "x"), "write an absolute one"),
        (volume("a", "/x/../y"), "write an absolute one"),
        ({"spec.rollout.podTemplatePatch": {"spec": {"nodeSelector": {"a": "b c"}}}}, "is not a label's value"),
        ({"spec.rollout.podTemplatePatch": {"spec": {"tolerations": [{"key": "a/b/c"}]}}}, "is not a label: write"),
        (
            {"spec.rollout.podTemplatePatch": {"spec": {"volumeMounts": [
                {"name": "drumroll-volume", "mountPath": "/x", "subPath": "../other"}]}}},
            "write a relative one",
        ),
    ],
)  # fmt: skip
def test_a_text_of_the_wrong_shape_is_told_its_shape(
    changes: dict[str, Any], message: str, job_text: Callable[..., str]
) -> None:
    (problem,) = parse_jobs(job_text(changes), "job.yaml").problems
    assert message in problem.message


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"spec.imagePullSecrets": [{"name": "s"}, {"name": "s"}]}, "s"),
        ({"spec.volumes": [{"name": "v", "mountPath": f"/{n}", "configMap": {"name": "c"}} for n in "ab"]}, "v"),
        ({"spec.trainer.podTemplatePatch": {"spec": {"volumes": [{"name": "w", "emptyDir": {}}] * 2}}}, "w"),
        ({"spec.trainer.podTemplatePatch": {"spec": {"initContainers": [{"name": "i", "image": "i"}] * 2}}}, "i"),
    ],
)
def test_a_name_that_is_there_twice_is_told(changes: dict[str, Any], name: str, job_text: Callable[..., str]) -> None:
    (problem,) = parse_jobs(job_text(changes), "job.yaml").problems
    assert problem.message == f"{name} is there more than once: write each name once"


def test_case_s6_secrets_of_init_containers_are_warned_of_without_their_value(job_text: Callable[..., str]) -> None:
    container = {"name": "fetch", "image": "i", "env": [{"name": "HUB_TOKEN", "value": "sentinel-9f3c"}]}
    text = job_text({"spec.scheduler.podTemplatePatch": {"spec": {"initContainers": [container]}}})
    (warning,) = parse_jobs(text, "job.yaml").warnings
    assert warning.field == "spec.scheduler.podTemplatePatch.spec.initContainers[0].env[0].value"
    assert "valueFrom" in str(warning)
    assert "sentinel" not in str(warning)
