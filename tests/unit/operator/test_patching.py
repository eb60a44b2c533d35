"""podTemplatePatch adds to a pod, and takes nothing away."""

from typing import Any

from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve

PATCH: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"example.test/note": "b"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                }
            }
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"team": "a"}},
            }
        ],
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "schedulerName": "other",
        "initContainers": [
            {
                "name": "fetch",
                "image": "tools:1",
                "args": ["get"],
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
                "resources": {"limits": {"memory": "1024Mi"}},
                "volumeMounts": [{"name": "drumroll-volume", "mountPath": "/data", "subPath": "models"}],
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    },
}


def rendered(make_job: Any, settings: Any, role: Any, **changes: Any) -> dict[str, Any]:
    return pod(resolve(make_job(**changes), settings), settings, role)


def test_every_field_of_the_allow_list_reaches_the_pod(make_job: Any, settings: Any) -> None:
    manifest = rendered(make_job, settings, "rollout", rollout={"podTemplatePatch": PATCH})
    spec, wanted = manifest["spec"], PATCH["spec"]
    assert manifest["metadata"]["labels"]["team"] == "a"
    assert manifest["metadata"]["annotations"] == PATCH["metadata"]["annotations"]
    for name in wanted.keys() - {"tolerations", "volumes", "volumeMounts", "initContainers"}:
        assert spec[name] == wanted[name], name
    assert wanted["tolerations"][0] in spec["tolerations"]
    assert {"name": "scratch", "emptyDir": {"medium": ""}} in spec["volumes"]
    assert {"name": "scratch", "mountPath": "/scratch"} in spec["containers"][0]["volumeMounts"]


def test_nothing_of_ours_is_lost(make_job: Any, settings: Any) -> None:
    for role in ("rollout", "trainer", "scheduler"):
        bare = rendered(make_job, settings, role, rollout={})
        manifest = rendered(make_job, settings, role, **{"rollout": {}, role: {"podTemplatePatch": PATCH}})
        assert bare["metadata"]["labels"].items() <= manifest["metadata"]["labels"].items()
        for name in ("volumes", "tolerations"):
            assert all(item in manifest["spec"][name] for item in bare["spec"][name]), name
        ours, patched = bare["spec"]["containers"][0], manifest["spec"]["containers"][0]
        assert all(mount in patched["volumeMounts"] for mount in ours["volumeMounts"])
        del ours["volumeMounts"], patched["volumeMounts"]
        assert ours == patched


def test_an_init_container_comes_first_and_is_as_restricted_as_ours(make_job: Any, settings: Any) -> None:
    manifest = rendered(make_job, settings, "scheduler", scheduler={"podTemplatePatch": PATCH})
    fetch, prepare = manifest["spec"]["initContainers"]
    assert fetch["securityContext"] == prepare["securityContext"]
    assert fetch["resources"] == {"limits": {"memory": "1Gi"}}
    assert fetch["volumeMounts"] == [
        {"name": "drumroll-volume", "mountPath": "/data", "subPath": "models"},
        {"name": "drumroll-tmp", "mountPath": "/tmp"},
    ]
    assert fetch["env"][0] == {"name": "HOME", "value": "/tmp"}
    assert fetch["env"][1] == PATCH["spec"]["initContainers"][0]["env"][0]


def test_what_prepares_the_data_sees_what_the_scheduler_sees(make_job: Any, settings: Any) -> None:
    manifest = rendered(make_job, settings, "scheduler", scheduler={"podTemplatePatch": PATCH})
    scratch = {"name": "scratch", "mountPath": "/scratch"}
    assert scratch in manifest["spec"]["initContainers"][1]["volumeMounts"]
    assert scratch in manifest["spec"]["containers"][0]["volumeMounts"]


def test_a_patch_of_one_role_is_not_anothers(make_job: Any, settings: Any) -> None:
    patched = {"rollout": {"replicas": 2, "podTemplatePatch": PATCH}}
    assert rendered(make_job, settings, "trainer", **patched) == rendered(make_job, settings, "trainer")


def test_the_store_can_be_placed_too(make_job: Any, settings: Any) -> None:
    patch = {"spec": {"priorityClassName": "high"}}
    manifest = rendered(make_job, settings, "store", stream={"embedded": {"podTemplatePatch": patch}})
    assert manifest["spec"]["priorityClassName"] == "high"
