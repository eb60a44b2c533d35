"""From a job file and the command line's overrides to one valid job."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from drumroll.api.advice import cluster_only
from drumroll.api.loading import parse_jobs, read_jobs
from drumroll.api.problems import InvalidJobs
from drumroll.api.spec import RLJob
from drumroll.errors import JobError, UserError


def choose_job(file: str, name: str | None, say: Callable[[str], None]) -> RLJob:
    """The one job of a file, or the named one of several.

    Raises:
        InvalidJobs: the file has problems.
        UserError: there are several jobs and no name, or none of that name.
    """
    loaded = read_jobs([file])
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    if loaded.problems:
        raise InvalidJobs(loaded.problems)
    jobs = {entry.job.metadata.name: entry.job for entry in loaded.jobs}
    if name is None and len(jobs) == 1:
        return next(iter(jobs.values()))
    if name is None:
        raise UserError(f"{file} holds {len(jobs)} jobs: choose one by --job {' or --job '.join(jobs)}")
    if name not in jobs:
        raise UserError(f"{file} holds no job {name!r}; it holds {', '.join(jobs)}")
    return jobs[name]


def read_job(path: Path) -> RLJob:
    """The job of a file that holds one.

    Raises:
        InvalidJobs: it does not.
    """
    return choose_job(str(path), None, lambda message: None)


def for_this_machine(job: RLJob, say: Callable[[str], None]) -> RLJob:
    """The job itself; what only a cluster acts on is named in one warning.

    Raises:
        JobError: the job is suspended.
    """
    if job.spec.suspend:
        raise JobError("spec.suspend: a local run is never suspended: leave it out, or end the run with Ctrl-C")
    if ignored := cluster_only(job.spec):
        say(f"warning: acts on a cluster only, ignored here: {', '.join(ignored)}")
    return job


def with_overrides(job: RLJob, *, seed: int | None, steps: int | None, sets: tuple[str, ...]) -> RLJob:
    """The job with fields replaced, judged again as a whole.

    Raises:
        JobError: an override is not PATH=VALUE.
        InvalidJobs: the job is not valid any more.
    """
    wire = job.to_wire()
    spec = wire["spec"]
    if seed is not None:
        spec["seed"] = seed
    if steps is not None:
        spec["steps"] = steps
        spec.pop("epochs", None)
    put_overrides(spec, sets)
    loaded = parse_jobs(json.dumps(wire), "the job with its overrides")
    if loaded.problems:
        raise InvalidJobs(loaded.problems)
    return loaded.jobs[0].job


def put_overrides(spec: dict[str, Any], sets: tuple[str, ...]) -> None:
    """Set fields of a spec's plain data, as `--set PATH=VALUE` says.

    Raises:
        JobError: an override is not PATH=VALUE.
    """
    for override in sets:
        path, equals, value = override.partition("=")
        if not equals or not path:
            raise JobError(f"--set {override!r}: write PATH=VALUE, such as rollout.replicas=4")
        _put(spec, path.removeprefix("spec.").split("."), _read_value(value, override), override)


def _read_value(text: str, override: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise JobError(f"--set {override!r}: the value cannot be read as YAML: quote it") from error


def _put(spec: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    for key in keys[:-1]:
        inner = spec.setdefault(key, {})
        if not isinstance(inner, dict):
            raise JobError(f"--set {override!r}: {key} has no fields of its own")
        spec = inner
    spec[keys[-1]] = value
