"""What a job has beside its pods."""

import base64
import json
from collections import Counter
from typing import Any

import pytest
from drumroll_operator.manifests import Manifest
from drumroll_operator.objects import children, config_name, manifest_digest
from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.tokens import derive, read_key

from drumroll.errors import UserError
from drumroll.job import ResolvedJob

KEY = b"k" * 32
URL = {"url": "redis://redis.test:6380", "secretRef": "redis"}


def named(objects: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


@pytest.fixture
def objects(make_job: Any, settings: OperatorSettings) -> list[Manifest]:
    return children(resolve(make_job(), settings), settings, KEY)


def test_names_follow_from_the_jobs_name(objects: list[Manifest]) -> None:
    assert Counter(item["kind"] for item in objects) == {
        "ConfigMap": 1,
        "Secret": 4,
        "Service": 2,
        "PodDisruptionBudget": 1,
        "NetworkPolicy": 5,
    }
    assert all(item["metadata"]["name"].startswith("tokens-") for item in objects)
    assert len({(item["kind"], item["metadata"]["name"]) for item in objects}) == len(objects)


def test_names_fit_for_the_longest_name_of_a_job(make_job: Any, settings: OperatorSettings) -> None:
    job = resolve(make_job(trainer={"replicas": 2}), settings).model_copy(update={"name": "a" * 40})
    assert all(len(item["metadata"]["name"]) <= 63 for item in children(job, settings, KEY))


def test_the_config_map_is_named_after_its_contents(make_job: Any, settings: OperatorSettings) -> None:
    one, other = (resolve(make_job(rollout={"replicas": n}), settings) for n in (2, 3))
    assert config_name(one) != config_name(other)
    config = named(children(one, settings, KEY), "ConfigMap")[config_name(one)]
    assert config["immutable"] is True
    assert ResolvedJob.model_validate_json(config["data"]["job.json"]).digest() == one.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": True},
        {"activeDeadlineSeconds": 60},
        {"cleanup": {"onSuccess": {"podsSeconds": 1}}},
        {"rollout": {"replicas": 2, "restartPolicy": {"maxRestarts": 1}}},
        {"rollout": {"replicas": 2, "podTemplatePatch": {"spec": {"priorityClassName": "high"}}}},
        {"scheduler": {"image": "own:1"}},
        {"env": [{"name": "A", "value": "b"}]},
        {"imagePullSecrets": [{"name": "own"}]},
    ],
)
def test_what_only_the_operator_acts_on_makes_no_new_revision(
    change: dict[str, Any], make_job: Any, settings: OperatorSettings
) -> None:
    assert config_name(resolve(make_job(**change), settings)) == config_name(resolve(make_job(), settings))


def test_each_secret_holds_what_its_role_reads_and_no_more(objects: list[Manifest]) -> None:
    keys = {name: sorted(item["data"]) for name, item in named(objects, "Secret").items()}
    assert keys == {
        "tokens-scheduler-secrets": [
            "operator.token",
            "rollout.token",
            "scheduler.token",
            "store-scheduler.password",
            "trainer.token",
            "viewer.token",
        ],
        "tokens-rollout-secrets": ["rollout.token", "store-rollout.password"],
        "tokens-trainer-secrets": ["store-trainer.password", "trainer.token"],
        "tokens-store-secrets": ["store-rollout.password", "store-scheduler.password", "store-trainer.password"],
    }


def test_the_same_key_makes_the_same_secrets_and_the_roles_agree(
    objects: list[Manifest], make_job: Any, settings: OperatorSettings
) -> None:
    secrets = named(objects, "Secret")
    again = named(children(resolve(make_job(), settings), settings, KEY), "Secret")
    assert secrets == again
    of_scheduler, of_rollout = secrets["tokens-scheduler-secrets"]["data"], secrets["tokens-rollout-secrets"]["data"]
    assert of_scheduler["rollout.token"] == of_rollout["rollout.token"]
    of_store = secrets["tokens-store-secrets"]["data"]
    assert of_store["store-rollout.password"] == of_rollout["store-rollout.password"]
    values = [value for item in secrets.values() for value in item["data"].values()]
    assert len(set(values)) == 8
    assert all(len(base64.b64decode(value)) == 43 for value in values)
    other = named(children(resolve(make_job(), settings), settings, b"o" * 32), "Secret")
    assert not {v for item in other.values() for v in item["data"].values()} & set(values)


def test_tokens_of_two_jobs_have_nothing_in_common() -> None:
    assert derive(KEY, "uid-1", "token", "rollout") != derive(KEY, "uid-2", "token", "rollout")
    assert derive(KEY, "uid-1", "token", "rollout") != derive(KEY, "uid-1", "store", "rollout")
    assert derive(KEY, "uid-1", "token", "operator") == derive(KEY, "uid-1", "token", "operator")


def test_a_short_key_is_refused(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="it needs 32 or more"):
        derive(b"short", "uid", "token", "rollout")
    (tmp_path / "key").write_bytes(b" " * 40 + b"short\n")
    with pytest.raises(UserError, match="has 5 bytes"):
        read_key(tmp_path / "key")
    with pytest.raises(UserError, match="cannot be read"):
        read_key(tmp_path / "none")
    (tmp_path / "key").write_bytes(KEY + b"\n")
    assert read_key(tmp_path / "key") == KEY


def test_a_store_of_ones_own_has_no_service_no_secret_and_no_policy(make_job: Any, settings: OperatorSettings) -> None:
    objects = children(resolve(make_job(stream=URL), settings), settings, KEY)
    assert not any("-store" in item["metadata"]["name"] for item in objects)
    assert not any("password" in key for item in named(objects, "Secret").values() for key in item["data"])


def test_services_select_the_pods_of_this_job_alone(objects: list[Manifest], make_job: Any, settings: Any) -> None:
    uid = resolve(make_job(), settings).uid
    for role, port in (("scheduler", 50051), ("store", 6379)):
        spec = named(objects, "Service")[f"tokens-{role}"]["spec"]
        assert spec["selector"] == {"drumroll.dev/job": "tokens", "drumroll.dev/uid": uid, "drumroll.dev/role": role}
        assert spec["ports"][0]["port"] == port


def test_several_trainer_pods_find_each_other_before_they_are_ready(make_job: Any, settings: OperatorSettings) -> None:
    objects = children(resolve(make_job(trainer={"replicas": 3}), settings), settings, KEY)
    service = named(objects, "Service")["tokens-trainer"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert named(objects, "PodDisruptionBudget")["tokens-trainer"]["spec"]["minAvailable"] == 2


def test_a_quarter_of_the_replicas_may_be_drained_at_a_time(objects: list[Manifest]) -> None:
    budgets = named(objects, "PodDisruptionBudget")
    assert list(budgets) == ["tokens-rollout"]
    spec = budgets["tokens-rollout"]["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == ("25%", "AlwaysAllow")


def test_a_digest_tells_manifests_apart(objects: list[Manifest]) -> None:
    assert len({manifest_digest(item) for item in objects}) == len(objects)
    assert manifest_digest(objects[0]) == manifest_digest(json.loads(json.dumps(objects[0])))


def test_where_the_chart_encrypts_servers_have_a_key_and_the_others_what_they_trust(
    make_job: Any, settings: OperatorSettings
) -> None:
    encrypted = OperatorSettings.model_validate(settings.to_wire() | {"tls": True})
    job = resolve(make_job(), encrypted)
    objects = children(job, encrypted, KEY, created=1.8e9)
    pem = {
        name: sorted(key for key in item["data"] if "." in key and key.rpartition(".")[2] in ("crt", "key"))
        for name, item in named(objects, "Secret").items()
    }
    both, trust = ["ca.crt", "tls.crt", "tls.key"], ["ca.crt"]
    assert pem == {
        "tokens-scheduler-secrets": both,
        "tokens-store-secrets": both,
        "tokens-rollout-secrets": trust,
        "tokens-trainer-secrets": trust,
    }
    assert objects == children(job, encrypted, KEY, created=1.8e9)
    assert job.endpoints.store == "rediss://tokens-store.team.svc.cluster.local:6379"
    folder = "/var/run/secrets/drumroll"
    files = job.secrets
    assert (files.store_ca_file, files.tls_ca_file) == (f"{folder}/ca.crt", f"{folder}/ca.crt")
    assert (files.tls_cert_file, files.tls_key_file) == (f"{folder}/tls.crt", f"{folder}/tls.key")
    probe = pod(job, encrypted, "store")["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    assert f"--ca={folder}/ca.crt" in probe
    with pytest.raises(UserError, match="creation"):
        children(job, encrypted, KEY)


def test_a_store_of_ones_own_is_checked_against_ones_own_authority(make_job: Any, settings: OperatorSettings) -> None:
    url = {"url": "rediss://redis.test:6380", "secretRef": "redis"}
    files = resolve(make_job(stream=url | {"caSecretRef": "ca"}), settings).secrets
    assert files.store_ca_file == "/var/run/secrets/drumroll-store-ca/ca.crt"
    assert files.tls_ca_file is None
    assert resolve(make_job(stream=url), settings).secrets.store_ca_file is None
