"""Which process sees which GPU: `CUDA_VISIBLE_DEVICES`, split by what the job's roles ask for. Pure but for `find`."""

import shutil
import subprocess
from collections.abc import Sequence

from drumroll.errors import UserError
from drumroll_cli.local.podspec import LocalPod


def find() -> list[str]:
    """Indices of this machine's GPUs; empty where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    answer = subprocess.run(
        [tool, "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=False
    )
    return answer.stdout.split() if answer.returncode == 0 else []


def assign(pods: Sequence[LocalPod], available: Sequence[str]) -> dict[str, str]:
    """Pod name to its CUDA_VISIBLE_DEVICES; empty strings where the machine has no GPU (then all runs on CPUs).

    A trainer or rollout that asks for none gets one where any is left. The trainer comes first.

    Raises:
        UserError: the job asks for more GPUs than there are.
    """
    computing = sorted(
        (pod for pod in pods if pod.role in ("trainer", "rollout")), key=lambda pod: pod.role != "trainer"
    )
    if not available:
        return {pod.name: "" for pod in pods}
    wanted = sum(pod.container.gpus for pod in computing)
    if wanted > len(available):
        raise UserError(
            f"the job asks for {wanted} GPUs (nvidia.com/gpu of trainer and rollout, times their replicas); "
            f"this machine has {len(available)}"
        )
    spare = len(available) - wanted
    free = list(available)
    given: dict[str, str] = {pod.name: "" for pod in pods}
    for pod in computing:
        count = pod.container.gpus
        if count == 0 and spare > 0:
            count, spare = 1, spare - 1
        given[pod.name], free = ",".join(free[:count]), free[count:]
    without = [pod.name for pod in computing if not given[pod.name]]
    if without and len(without) < len(computing):
        raise UserError(f"no GPU is left for {', '.join(without)}: lower rollout.replicas, or ask for fewer per role")
    return given
