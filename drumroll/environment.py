"""The only module that reads the process environment: who this process is, and where its job file lies."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drumroll.errors import UserError


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of a job."""

    job_file: str
    """DRUMROLL_JOB: path of job.json."""
    role: str
    """DRUMROLL_ROLE: scheduler, rollout or trainer."""
    name: str
    """DRUMROLL_REPLICA: such as rollout-0; the role where it is unset."""


def read_identity(environ: Mapping[str, str] | None = None) -> Identity:
    """Who this process is.

    Raises:
        UserError: DRUMROLL_JOB or DRUMROLL_ROLE is unset.
    """
    values = os.environ if environ is None else environ  # noqa: TID251 - this is the one place
    try:
        role = values["DRUMROLL_ROLE"]
        return Identity(values["DRUMROLL_JOB"], role, values.get("DRUMROLL_REPLICA", role))
    except KeyError as error:
        raise UserError(f"{error.args[0]} is not set; start this process through `drumroll run`") from error


def variable(name: str, default: str | None = None) -> str | None:
    """One variable, for what has no place in job.json (library switches, data folders of tests)."""
    return os.environ.get(name, default)  # noqa: TID251 - this is the one place


def termination_file() -> Path | None:
    """DRUMROLL_TERMINATION_FILE: where a process on a cluster leaves its last words; None: nowhere."""
    name = variable("DRUMROLL_TERMINATION_FILE")
    return Path(name) if name else None


def health_port() -> int | None:
    """DRUMROLL_HEALTH_PORT: where a process on a cluster says how it is; None: nowhere. Of the ranks of one pod only
    the first has it."""
    port = variable("DRUMROLL_HEALTH_PORT")
    return int(port) if port and variable("LOCAL_RANK", "0") == "0" else None


def set_library_variables(values: Mapping[str, str]) -> None:
    """Set switches that a library reads from the environment, before it is imported; what is set already stays."""
    for name, value in values.items():
        os.environ.setdefault(name, value)  # noqa: TID251 - this is the one place


def override_library_variable(name: str, value: str) -> None:
    """Set one switch against what a library has put there itself."""
    os.environ[name] = value  # noqa: TID251 - this is the one place


def copy() -> dict[str, str]:
    """All variables, to hand to a child process."""
    return dict(os.environ)  # noqa: TID251 - this is the one place
