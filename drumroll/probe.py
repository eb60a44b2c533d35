"""`python -m drumroll.probe scheduler|rollout`: exit 0 where that part of the job answers, 1 where not.

The scheduler answers a Status call; a rollout counts as alive while the scheduler has heard its heartbeats. Whether it
makes progress is the leases' business, not the probe's. The store is asked by `drumroll.ping`.
"""

import asyncio
import sys

from drumroll_proto.v1 import scheduler_pb2

from drumroll.environment import Identity, read_identity
from drumroll.errors import DrumrollError
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient

DEADLINE_S = 8.0
SILENCE_S = 60.0
"""A rollout that the scheduler has not heard for so long is stuck."""


async def probe(target: str, identity: Identity) -> bool:
    """Whether the target answers.

    Raises:
        DrumrollError: it does not, with the reason.
    """
    job = ResolvedJob.load(identity.job_file)
    role = "scheduler" if target == "scheduler" else identity.role
    async with SchedulerClient(job, role, attempt_s=DEADLINE_S) as scheduler:
        status = await scheduler.status(scheduler_pb2.StatusRequest(), deadline_s=DEADLINE_S)
    return target == "scheduler" or heard(status, identity.name)


def heard(status: scheduler_pb2.StatusReply, name: str) -> bool:
    """Whether the scheduler has heard the replica lately; one that it does not know yet is given time."""
    return all(replica.silent_s < SILENCE_S for replica in status.replicas if replica.name == name)


def main(arguments: list[str]) -> int:
    """Exit code of the probe; the reason goes to standard error."""
    if arguments not in (["scheduler"], ["rollout"]):
        sys.stderr.write("usage: python -m drumroll.probe scheduler|rollout\n")
        return 2
    try:
        return 0 if asyncio.run(probe(arguments[0], read_identity())) else 1
    except DrumrollError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
