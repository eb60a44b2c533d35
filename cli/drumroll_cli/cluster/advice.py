"""What to do next about a job, from its status: the reason's own words, and the command that helps. Pure."""

from collections.abc import Iterator

from drumroll_operator.reasons import documented

from drumroll_cli.cluster.objects import Condition, JobView

_DESCRIBE = "kubectl describe pod -n {namespace} -l drumroll.dev/job={job}"
_LOOK: dict[str, str] = {
    "InvalidSpec": "correct the file, then drumroll cancel {it} and submit again",
    "NoVolume": "drumroll doctor lists the claims of the namespace",
    "QuotaExceeded": "kubectl describe quota -n {namespace}",
    "MissingRights": "drumroll doctor; then helm upgrade (docs/rbac.md)",
    "AdmissionDenied": "drumroll doctor; kubectl get namespace {namespace} --show-labels",
    "NameTaken": "kubectl get all -n {namespace}",
    "Unschedulable": "drumroll doctor shows what the nodes have; " + _DESCRIBE,
    "StuckCreating": _DESCRIBE,
    "ImagePullBackOff": _DESCRIBE,
    "CreateContainerConfigError": _DESCRIBE,
    "CreateContainerError": _DESCRIBE,
    "PreparingData": "drumroll logs {it} --role scheduler -f",
    "NodeLost": "kubectl get nodes; docs/operations.md",
    "Suspended": "drumroll resume {it}",
    "Stalled": "drumroll top {it}; drumroll logs {it} --role trainer --tail 50",
    "TooFewReplicas": "drumroll top {it}; drumroll logs {it} --role rollout --tail 50",
    "UserError": "correct it, then drumroll cancel {it} and submit again",
    "TrainingFailed": "drumroll logs {it} --role scheduler",
    "BackoffLimitExceeded": "drumroll logs {it} --previous",
    "PendingDeadlineExceeded": "drumroll doctor -f FILE; then drumroll cancel {it} and submit again",
    "StallDeadlineExceeded": "drumroll logs {it} --previous",
}
"""Reason to the command that helps; others have none better than the ones below."""

_ORDER = (
    *("Accepted", "Admitted", "StreamReady", "SchedulerReady", "TrainerReady", "RolloutReady", "WeightsInSync"),
    "Progressing",
)
"""The first of these that does not hold is what a job waits for."""


def next_steps(job: JobView) -> list[str]:
    """Sentences, the most useful first; at least one."""
    it = job.name if job.namespace == "default" else f"{job.name} -n {job.namespace}"
    return [line.format(job=job.name, it=it, namespace=job.namespace) for line in _steps(job)]


def _steps(job: JobView) -> Iterator[str]:
    if job.deleting:
        yield "the job is being deleted; its files stay on its volume"
        return
    if job.phase == "Complete":
        yield f"its weights and checkpoints are on its volume{f' in {job.job_dir}' if job.job_dir else ''}"
        yield "drumroll audit <that folder> proves that no sample was lost; drumroll cancel {it} removes the job"
        return
    if job.phase == "Failed":
        yield from _about(job.condition("Failed"))
        yield "drumroll logs {it}; once the cause is gone, submit it under another name with resumeFrom"
        return
    if not job.conditions:
        yield "no operator has looked at the job yet: drumroll doctor says whether one runs"
        return
    if not job.seen:
        yield "the operator has not seen the newest change yet"
    if (held := job.condition("Suspended")) is not None and held.status == "True":
        yield from _about(held)
        return
    waits = [found for kind in _ORDER if (found := job.condition(kind)) is not None and found.status == "False"]
    degraded = job.condition("Degraded")
    if waits:
        yield from _about(waits[0])
    if degraded is not None and degraded.status == "True" and (not waits or degraded.reason != waits[0].reason):
        yield from _about(degraded)
    yield "drumroll top {it} shows it live; drumroll logs {it} -f follows its logs"


def _about(condition: Condition | None) -> Iterator[str]:
    if condition is None:
        return
    if (words := documented().get(condition.reason)) is not None:
        yield f"{condition.reason}: {words}".replace("{", "{{").replace("}", "}}")
    if condition.reason in _LOOK:
        yield _LOOK[condition.reason]
