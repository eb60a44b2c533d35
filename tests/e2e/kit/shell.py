"""Commands that tests run: what they say is part of the message when they fail."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class CommandFailed(AssertionError):
    """A command ended with an error."""


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    text: str | None = None,
    check: bool = True,
    deadline_s: float = 120.0,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end.

    Raises:
        CommandFailed: exit code other than 0 (with `check`), or not done in `deadline_s`.
    """
    shown = " ".join(str(part) for part in command)
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env=env,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=deadline_s,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{shown}: not done in {deadline_s} s\n{error.stdout}\n{error.stderr}") from None
    if check and done.returncode != 0:
        raise CommandFailed(f"{shown}: exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done
