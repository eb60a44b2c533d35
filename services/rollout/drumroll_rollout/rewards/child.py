"""A reward process: loads one reward, then answers calls until its replica goes away.

Frames come on what was standard input and go out on what was standard output; whatever the reward prints goes to the
log.
"""

import ctypes  # noqa: F401 - loaded before the memory limit
import os
import resource
import signal
import sys
import threading
import time
import traceback
from typing import Any

from drumroll.errors import UserError
from drumroll_rollout.rewards.frames import FrameError, read_frame, write_frame
from drumroll_rollout.rewards.rewards import Batch, Reward, load_reward
from drumroll_rollout.rewards.sandbox.processes import become_subreaper, descendants, kill_descendants
from drumroll_rollout.rewards.setup import WorkerSetup

_PARENT_CHECK_S = 0.5
_TRACE_CHARACTERS = 4000


def main() -> None:
    """Serve until standard input ends."""
    parent = os.getppid()
    requests, replies = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    become_subreaper()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    reward: Reward | None = None
    while True:
        try:
            message = read_frame(requests)
        except FrameError:
            kill_descendants(os.getpid())
            return
        if "setup" in message:
            reward, reply = _load(WorkerSetup.from_message(message["setup"]))
        else:
            assert reward is not None
            reply = _score(reward, message)
            _reap(reward)
        write_frame(replies, reply)


def _load(setup: WorkerSetup) -> tuple[Reward | None, dict[str, Any]]:
    _limit(setup.memory_bytes)
    sys.path.insert(0, setup.source_dir)
    try:
        return load_reward(setup), {"ready": True}
    except UserError as error:
        return None, {"fault": str(error)}


def _score(reward: Reward, message: dict[str, Any]) -> dict[str, Any]:
    batch = Batch(message["prompts"], message["completions"], message["completion_ids"], message["inputs"])
    try:
        scores = reward.score(batch)
    except UserError as error:
        return {"fault": str(error)}
    # The edge to foreign code: whatever it raises, SystemExit among it, is a crash of this call and of nothing else.
    except BaseException as error:  # noqa: BLE001
        trace = "".join(traceback.format_exception(error))[-_TRACE_CHARACTERS:]
        return {"crash": f"{reward.name} raised {type(error).__name__}: {error}\n{trace}"}
    return {"scores": scores}


def _reap(reward: Reward) -> None:
    """End what a call has left behind, unless the reward keeps processes of its own on purpose."""
    if not reward.keeps_processes and descendants(os.getpid()):
        kill_descendants(os.getpid())
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _limit(memory_bytes: int) -> None:
    """A limit on data, not on addresses: libraries map far more than they use. The replica watches what is resident."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with(parent: int) -> None:
    """A replica that was killed cannot end its reward processes: they notice by themselves."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    kill_descendants(os.getpid())
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
