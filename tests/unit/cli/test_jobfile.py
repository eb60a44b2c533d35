"""From a job file and overrides to one valid job."""

from pathlib import Path

import pytest
from drumroll_cli.local.jobfile import choose_job, for_this_machine, read_job, with_overrides

from drumroll.api.problems import InvalidJobs
from drumroll.api.spec import RLJob
from drumroll.errors import JobError, UserError

JOB = """\
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: NAME}
spec:
  model: {path: m}
  data: {train: {path: t.jsonl}}
  reward: {type: exact}
  epochs: 2
"""


def write(tmp_path: Path, *names: str) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text("---\n".join(JOB.replace("NAME", name) for name in names))
    return path


def job(tmp_path: Path) -> RLJob:
    return read_job(write(tmp_path, "one"))


def test_the_only_job_needs_no_name(tmp_path: Path) -> None:
    assert job(tmp_path).metadata.name == "one"


def test_of_several_one_is_chosen_by_name(tmp_path: Path) -> None:
    path = str(write(tmp_path, "one", "two"))
    assert choose_job(path, "two", print).metadata.name == "two"
    with pytest.raises(UserError, match="holds 2 jobs: choose one by --job one or --job two"):
        choose_job(path, None, print)
    with pytest.raises(UserError, match="no job 'three'; it holds one, two"):
        choose_job(path, "three", print)


def test_warnings_are_said(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("NAME", "one") + "  env: [{name: HF_TOKEN, value: sentinel}]\n")
    said: list[str] = []
    choose_job(str(path), None, said.append)
    assert len(said) == 1
    assert "HF_TOKEN looks like a secret" in said[0]
    assert "sentinel" not in said[0]


def test_overrides_replace_fields(tmp_path: Path) -> None:
    sets = ("rollout.replicas=3", "spec.data.train.maxPrompts=7", "reward.requireStop=true")
    changed = with_overrides(job(tmp_path), seed=4, steps=9, sets=sets).spec
    assert (changed.seed, changed.steps, changed.epochs) == (4, 9, None)
    assert (changed.rollout.replicas, changed.data.train.max_prompts, changed.reward.require_stop) == (3, 7, True)


def test_what_is_not_overridden_stays(tmp_path: Path) -> None:
    given = job(tmp_path)
    assert with_overrides(given, seed=None, steps=None, sets=()) == given


@pytest.mark.parametrize("override", ["rollout.replicas", "=3", ""])
def test_an_override_is_path_and_value(tmp_path: Path, override: str) -> None:
    with pytest.raises(JobError, match="write PATH=VALUE"):
        with_overrides(job(tmp_path), seed=None, steps=None, sets=(override,))


def test_an_override_that_is_no_yaml_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"--set 'seed=\[1': the value cannot be read"):
        with_overrides(job(tmp_path), seed=None, steps=None, sets=("seed=[1",))


def test_an_override_into_a_plain_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="epochs has no fields of its own"):
        with_overrides(job(tmp_path), seed=None, steps=None, sets=("epochs.more=1",))


def test_the_job_is_judged_again_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobs, match=r"spec\.targetPolicyLag"):
        with_overrides(job(tmp_path), seed=None, steps=None, sets=("targetPolicyLag=9",))


def test_what_only_a_cluster_acts_on_is_named_in_one_warning(tmp_path: Path) -> None:
    wanted = with_overrides(
        job(tmp_path),
        seed=None,
        steps=None,
        sets=(
            "rollout.image=registry.example/rollout:1",
            "trainer.podTemplatePatch={spec: {priorityClassName: high}}",
            "cleanup.onSuccess.podsSeconds=5",
            "volumes=[{name: models, mountPath: /models, persistentVolumeClaim: {claimName: models}}]",
            "trainer.resources.limits.cpu=2",
        ),
    )
    said: list[str] = []
    assert for_this_machine(wanted, said.append) is wanted
    assert said == [
        "warning: acts on a cluster only, ignored here: spec.rollout.image, spec.trainer.podTemplatePatch, "
        "spec.volumes, spec.cleanup"
    ]


def test_a_job_for_both_is_run_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    for_this_machine(job(tmp_path), said.append)
    assert said == []


def test_a_suspended_job_is_not_run_here(tmp_path: Path) -> None:
    held = with_overrides(job(tmp_path), seed=None, steps=None, sets=("suspend=true",))
    with pytest.raises(JobError, match=r"spec\.suspend: .*leave it out"):
        for_this_machine(held, print)
