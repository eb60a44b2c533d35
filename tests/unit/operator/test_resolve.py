"""A job as the processes of a cluster read it, and the settings that go into it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from drumroll_operator.quantities import canonical
from drumroll_operator.resolve import JobRefused, resolve
from drumroll_operator.settings import OperatorSettings
from hypothesis import given
from hypothesis import strategies as st

from drumroll.api.quantity import parse_quantity
from drumroll.errors import UserError


def test_files_lie_on_the_claim_and_addresses_are_services(make_job: Any, settings: OperatorSettings) -> None:
    job = resolve(make_job(), settings)
    folder = f"/var/lib/drumroll/team/tokens-{job.uid}"
    assert job.layout.job_dir == folder
    assert job.layout.data_dir == f"{folder}/data"
    assert job.metrics_path == f"{folder}/metrics.jsonl"
    assert (job.layout.model_dir, job.layout.source_dir) == ("/var/lib/drumroll/models/tiny", "/var/lib/drumroll")
    assert job.endpoints.scheduler == "tokens-scheduler.team.svc.cluster.local:50051"
    assert job.endpoints.store == "redis://tokens-store.team.svc.cluster.local:6379"
    assert job.operator_scales


def test_paths_outside_of_the_claim_stay_as_they_are(make_job: Any, settings: OperatorSettings) -> None:
    job = resolve(make_job(model={"path": "/models/tiny"}), settings)
    assert job.layout.model_dir == "/models/tiny"
    inner = resolve(make_job(model={"path": "jobs/../models/./tiny"}), settings)
    assert inner.layout.model_dir == "/var/lib/drumroll/models/tiny"


@pytest.mark.parametrize("field", ["model.path", "data.train.path", "data.eval.path"])
def test_a_relative_path_that_leaves_the_claim_is_refused_by_name(
    make_job: Any, settings: OperatorSettings, field: str
) -> None:
    data = {"train": {"path": "t.jsonl"}, "maxPromptTokens": 16, "maxResponseTokens": 16}
    part = field.split(".")[1]
    changes = (
        {"model": {"path": "../models/tiny"}} if part == "path" else {"data": data | {part: {"path": "a/../../t"}}}
    )
    with pytest.raises(JobRefused, match=rf"spec\.{field} is '.*\.\./.*absolute") as refused:
        resolve(make_job(**changes), settings)
    assert refused.value.reason == "InvalidSpec"


def test_a_redis_of_ones_own_has_its_own_password_file(make_job: Any, settings: OperatorSettings) -> None:
    job = resolve(make_job(stream={"url": "redis://r:6379", "secretRef": "redis"}), settings)
    assert job.endpoints.store == "redis://r:6379"
    assert set(job.secrets.store_password_files.values()) == {"/var/run/secrets/drumroll-store/password"}


def test_a_job_without_a_claim_is_refused_unless_the_operator_has_one(
    make_job: Any, settings: OperatorSettings
) -> None:
    job = make_job(weights={})
    with pytest.raises(JobRefused, match="ReadWriteMany") as refused:
        resolve(job, settings)
    assert refused.value.reason == "NoVolume"
    with_default = OperatorSettings.model_validate(settings.to_wire() | {"defaultClaim": "shared"})
    assert resolve(job, with_default).uid == job.metadata.uid
    empty = OperatorSettings.model_validate(settings.to_wire() | {"defaultClaim": ""})
    with pytest.raises(JobRefused):
        resolve(job, empty)


def test_the_planner_sets_the_target_where_the_job_does_not(make_job: Any, settings: OperatorSettings) -> None:
    assert resolve(make_job(), settings).planner_sets_target
    assert not resolve(make_job(targetPolicyLag=1), settings).planner_sets_target


def test_settings_come_from_a_file_and_nothing_unknown_is_in_it(tmp_path: Path, settings: OperatorSettings) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings.to_wire()))
    assert OperatorSettings.load(file) == settings
    file.write_text(yaml.safe_dump(settings.to_wire() | {"image": "x"}))
    with pytest.raises(UserError, match="image"):
        OperatorSettings.load(file)
    file.write_text("a: [")
    with pytest.raises(UserError, match="cannot be used"):
        OperatorSettings.load(file)
    with pytest.raises(UserError, match=r"none\.yaml"):
        OperatorSettings.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("name", "written", "same"),
    [
        ("cpu", "1000m", "1"),
        ("cpu", "0.5", "500m"),
        ("cpu", "1.0", "1"),
        ("cpu", "0.0001", "1m"),
        ("memory", "1073741824", "1Gi"),
        ("memory", "1024Mi", "1Gi"),
        ("memory", "1.5Gi", "1536Mi"),
        ("memory", "1G", "1000000000"),
        ("memory", "0", "0"),
        ("nvidia.com/gpu", "4", "4"),
    ],
)
def test_a_quantity_has_one_spelling(name: str, written: str, same: str) -> None:
    spelled = canonical(name, written)
    assert parse_quantity(spelled) == parse_quantity(same)
    assert canonical(name, spelled) == spelled == canonical(name, same)


@given(st.integers(0, 2**60), st.sampled_from(["", "Ki", "Mi", "k", "M", "m"]))
def test_spelling_changes_no_amount(number: int, unit: str) -> None:
    written = f"{number}{unit}"
    assert 0 <= parse_quantity(canonical("memory", written)) - parse_quantity(written) < 1
