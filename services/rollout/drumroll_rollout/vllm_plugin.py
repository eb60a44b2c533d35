"""vLLM's entry point into Drumroll, loaded by vLLM in each of its processes.

It registers the loader of published weights, and, in our own processes on a CPU, makes vLLM start by fork with the
worker inside of the engine's process: 6 to 8 seconds instead of 70, and 1 GiB less. That is safe only as a set with
the variables of `vllm_settings.library_variables`, and while the parent has run no torch operation.
"""

import logging
import multiprocessing
import os
import threading
from typing import Any

from drumroll import environment
from drumroll_rollout.vllm_settings import FORK_SWITCH, TRANSFER_BACKEND

logger = logging.getLogger(__name__)

_PARENT_LOOK_SECONDS = 1.0
_watching: set[int] = set()


def register() -> None:
    """Entry point of the group vllm.general_plugins; called any number of times."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.platforms import current_platform

    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER_BACKEND, "drumroll_rollout.vllm_weights", "PublishedWeightsLoader"
        )
    if environment.variable(FORK_SWITCH) != "1":
        return
    if current_platform.is_cpu():
        start_by_fork(type(current_platform))
    if multiprocessing.parent_process() is not None:
        end_with_parent()


def start_by_fork(platform: Any) -> None:
    """Patch vLLM's CPU platform: it insists on spawning two processes that each import everything again."""
    if getattr(platform, "_drumroll_fork", False):
        return
    original = platform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        environment.override_library_variable("VLLM_WORKER_MULTIPROC_METHOD", "fork")
        if vllm_config.parallel_config.world_size == 1:
            vllm_config.parallel_config.distributed_executor_backend = "uni"

    platform.check_and_update_config = classmethod(check_and_update_config)
    platform._drumroll_fork = True


def end_with_parent() -> None:
    """End this process soon after its parent is gone, so that a killed replica leaves no engine behind."""
    if os.getpid() in _watching:
        return
    _watching.add(os.getpid())
    parent = os.getppid()

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(_PARENT_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
