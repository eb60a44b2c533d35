"""The RLJobs, the newest state of each, parsed once per version. Fed by kopf, own lists and own writes.

So the status in a view is at least as new as the last one that was written here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from drumroll.api.spec import RLJob
from drumroll_operator import reasons
from drumroll_operator.cluster import RLJOBS, Raw
from drumroll_operator.observed import JobView, Refusal
from drumroll_operator.pod_cache import version_of
from drumroll_operator.pod_view import seconds
from drumroll_operator.status_reading import read_status
from drumroll_operator.watch import ObjectName, object_name


@dataclass(frozen=True, slots=True)
class Job:
    """An RLJob as it was last seen."""

    view: JobView
    model: RLJob | None
    """What is rendered; None: it does not parse."""
    refusal: Refusal | None
    """Why not."""
    version: str
    """Its resourceVersion."""


class JobCache:
    """A Sink of RLJobs."""

    def __init__(self, on_change: Callable[[ObjectName], None]) -> None:
        self._on_change = on_change
        self._jobs: dict[ObjectName, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def get(self, name: ObjectName) -> Job | None:
        """The newest state; None where there is no such job."""
        return self._jobs.get(name)

    def changed(self, raw: Raw) -> None:
        """See Sink."""
        name = object_name(raw)
        known = self._jobs.get(name)
        if known is not None and version_of(raw) <= int(known.version):
            return
        self._jobs[name] = _parse(raw, known)
        self._on_change(name)

    def deleted(self, raw: Raw) -> None:
        """See Sink."""
        name = object_name(raw)
        known = self._jobs.get(name)
        if known is not None and known.view.uid == raw["metadata"]["uid"]:
            self.forget(name)

    def listed(self, namespace: str | None, present: set[ObjectName], resource_version: str) -> None:
        """See Sink."""
        for name, job in list(self._jobs.items()):
            there = namespace is not None and namespace != name[0]
            if not there and name not in present and int(job.version) <= int(resource_version):
                self.forget(name)

    def forget(self, name: ObjectName) -> None:
        """It is gone."""
        if self._jobs.pop(name, None) is not None:
            self._on_change(name)


def _parse(raw: Raw, known: Job | None) -> Job:
    metadata = raw["metadata"]
    namespace, name = object_name(raw)
    model, refusal = _model(raw, known)
    view = JobView(
        namespace=namespace,
        name=name,
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        spec=model.spec if model is not None else None,
        status=read_status(raw.get("status")),
        deleting="deletionTimestamp" in metadata,
    )
    return Job(view, model, refusal, metadata["resourceVersion"])


def _model(raw: Raw, known: Job | None) -> tuple[RLJob | None, Refusal | None]:
    metadata = raw["metadata"]
    if known is not None and (known.view.uid, known.view.generation) == (
        metadata["uid"],
        metadata.get("generation", 1),
    ):
        return known.model, known.refusal
    about = {key: metadata[key] for key in ("name", "namespace", "uid", "labels") if key in metadata}
    job = {"apiVersion": RLJOBS.api_version, "kind": RLJOBS.name, "metadata": about, "spec": raw.get("spec")}
    try:
        return RLJob.model_validate(job), None
    except ValidationError as error:
        return None, Refusal(reasons.INVALID_SPEC, _told(error))


def _told(error: ValidationError) -> str:
    """Each wrong field with what is wrong about it; values stay out, they may be long."""
    wrong = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
    return "; ".join(wrong)
