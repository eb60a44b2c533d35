"""Loads a published weight version into a running vLLM model, in vLLM's own worker process.

The directory was verified by the replica before; only the files that it named are read. Every parameter of the model
must get a value: a version that leaves one out is refused.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from drumroll_rollout.vllm_plugin import end_with_parent

# It warns of layers without weights of their own, such as rotary tables; missing ones are found below.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is untyped to mypy
    """Nothing to agree on: the meeting point is a directory."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # likewise
    """What to load."""

    directory: str
    files: list[str] = field(default_factory=list)
    """Names of the safetensors files, in order."""


class PublishedWeightsLoader(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]  # likewise
    """See the module."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        end_with_parent()
        if threading.current_thread() is threading.main_thread():
            # An interrupt from the terminal reaches all processes; the replica decides what becomes of its engine.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load all files.

        Raises:
            ValueError: a parameter of the model got no value.
        """
        tied = _has_tied_head(self.model)
        wanted = {name for name, _ in self.model.named_parameters() if not (tied and name.startswith("lm_head."))}
        loaded = self.model.load_weights(_tensors(Path(update_info.directory), update_info.files))
        missing = sorted(wanted - set(loaded)) if loaded is not None else []
        if missing:
            raise ValueError(f"{update_info.directory} has no weights for {', '.join(missing[:5])}")

    def finish_weight_update(self) -> None:
        with torch.no_grad():
            finalize_layerwise_reload(self.model, self.model_config)
            _repack_tied_head(self.model)

    def shutdown(self) -> None:
        pass


def _tensors(directory: Path, files: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name in files:
        with safe_open(directory / name, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                yield key, file.get_tensor(key)


def _repack_tied_head(model: Any) -> None:
    """vLLM packs a head on a CPU when it is made and forgets one that shares the embedding's weights at a reload.

    Without this, logits come from the new body and the old head, while all sums and versions look right.
    """
    head: Any = getattr(model, "lm_head", None)
    if _has_tied_head(model) and hasattr(head, "quant_method"):
        head.quant_method.process_weights_after_loading(head)


def _has_tied_head(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "tie_word_embeddings", False))
