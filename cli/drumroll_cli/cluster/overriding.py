"""A job file's job with the command line's overrides, still without defaults of its own. Pure."""

import json
from dataclasses import replace

from drumroll.api.loading import LoadedJob, parse_jobs
from drumroll.api.problems import InvalidJobs
from drumroll_cli.local.jobfile import put_overrides


def overridden(entry: LoadedJob, sets: tuple[str, ...]) -> LoadedJob:
    """The same entry with fields replaced and the job judged again.

    Raises:
        JobError: an override is not PATH=VALUE, or the job is not valid any more.
    """
    if not sets:
        return entry
    data = entry.job.model_dump(by_alias=True, exclude_unset=True, exclude_none=True, mode="json")
    put_overrides(data["spec"], sets)
    loaded = parse_jobs(json.dumps(data), f"{entry.file} with its overrides")
    if loaded.problems:
        raise InvalidJobs(loaded.problems)
    return replace(entry, job=loaded.jobs[0].job)
