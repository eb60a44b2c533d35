"""`python -m drumroll_scheduler`: the scheduler of the job that DRUMROLL_JOB names."""

import argparse
import asyncio
import gc
import logging
import signal
import sys

from drumroll import logs
from drumroll.environment import read_identity
from drumroll.errors import EXIT_FENCED, EXIT_INTERNAL, EXIT_USER, DrumrollError, Fenced, UserError
from drumroll.farewell import leave_words
from drumroll.job import ResolvedJob
from drumroll.signals import end_on_sigterm
from drumroll_scheduler.app import App
from drumroll_scheduler.opening import Accept

logger = logging.getLogger("drumroll_scheduler")


def arguments(argv: list[str] | None = None) -> Accept:
    """What the command line lets a resume change."""
    parser = argparse.ArgumentParser(prog="python -m drumroll_scheduler", description=__doc__)
    parser.add_argument("--accept-data-change", action="store_true", help="go on with other data than at the start")
    parser.add_argument("--accept-job-change", action="store_true", help="go on with another group size, lag or seed")
    given = parser.parse_args(argv)
    return Accept(data=given.accept_data_change, job=given.accept_job_change)


def collect_rarely() -> None:
    """Look for garbage cycles in young objects often, in all of them hardly ever.

    The state of a large fleet is a million objects that live: a full collection walks them all, and nobody is answered
    for as long (80 ms at 4,000 leases). Reference counts free nearly everything here.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 1_000)


async def serve(accept: Accept) -> int:
    """Run the scheduler; SIGTERM and SIGINT stop it."""
    collect_rarely()
    identity = read_identity()
    app = App(ResolvedJob.load(identity.job_file), accept=accept)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.stop)
    return await app.run()


def main(argv: list[str] | None = None) -> int:
    """The process; its exit code."""
    end_on_sigterm()
    logs.set_up("scheduler")
    try:
        return asyncio.run(serve(arguments(argv)))
    except Fenced as error:
        logger.error("replaced: %s", error)
        return EXIT_FENCED
    except UserError as error:
        logger.error("%s", error)
        leave_words(str(error))
        return EXIT_USER
    except DrumrollError as error:
        logger.error("%s: %s", type(error).__name__, error)
        leave_words(f"{type(error).__name__}: {error}")
        return EXIT_INTERNAL


if __name__ == "__main__":
    sys.exit(main())
