"""`python -m drumroll.status_feed [SECONDS]`: the scheduler's status as a line of JSON, once or every so many seconds.

Runs inside a job's scheduler pod, where `drumroll top` starts it: no token leaves the pod. It asks as a viewer, over
the pod's own loopback, and ends when nobody reads any more, when the job has ended, and in any case after two minutes:
not every runtime tells a process that its reader has gone. Whoever still reads starts another one.
"""

import asyncio
import json
import sys
from typing import TextIO

from drumroll_proto.v1 import scheduler_pb2
from google.protobuf.json_format import MessageToDict

from drumroll.environment import read_identity
from drumroll.errors import DrumrollError
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient

DEADLINE_S = 10.0
MOST_S = 120.0
"""Then it ends."""
ENDED = ("Complete", "Failed")


async def feed(job: ResolvedJob, period_s: float | None, out: TextIO, *, most_s: float = MOST_S) -> None:
    """Write statuses to `out` until the job has ended, or for `most_s` seconds; no period: one.

    Raises:
        DrumrollError: the scheduler does not answer.
        BrokenPipeError: nobody reads any more.
    """
    end = asyncio.get_running_loop().time() + most_s
    port = job.endpoints.scheduler.rpartition(":")[2]
    async with SchedulerClient(job, "viewer", address=f"127.0.0.1:{port}", attempt_s=DEADLINE_S) as scheduler:
        while True:
            status = await scheduler.status(scheduler_pb2.StatusRequest(), deadline_s=DEADLINE_S)
            out.write(json_line(status))
            out.flush()
            if period_s is None or status.phase in ENDED or asyncio.get_running_loop().time() + period_s > end:
                return
            await asyncio.sleep(period_s)


def json_line(status: scheduler_pb2.StatusReply) -> str:
    """The status as one line of JSON that `json_format.Parse` reads."""
    return json.dumps(MessageToDict(status, preserving_proto_field_name=True)) + "\n"


def main(arguments: list[str]) -> int:
    """Exit code; the reason of a failure goes to standard error."""
    try:
        period_s = float(arguments[0]) if arguments else None
        asyncio.run(feed(ResolvedJob.load(read_identity().job_file), period_s, sys.stdout))
    except BrokenPipeError:
        sys.stderr.close()  # Nobody reads; the interpreter must not complain at its end.
        return 0
    except (DrumrollError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
