"""The last words of a process, for whoever looks after it: the termination message of its container.

On a cluster DRUMROLL_TERMINATION_FILE names the file; elsewhere nothing is written. Never fails: a process that ends
has other worries.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from drumroll import environment

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 2048
"""The kubelet cuts at 4096, and at 12 KiB for all containers of a pod."""
_CUT: Final = " [...] "


def leave_words(text: str, *, file: Path | None = None) -> None:
    """Say why the process ends. `file`: another one than the environment's."""
    _write(shortened(text), file)


def leave_report(report: Mapping[str, Any], *, file: Path | None = None) -> None:
    """Say how the job ended, as JSON; its `reason` is cut so that the whole stays JSON."""
    whole = dict(report)
    room = MOST_BYTES - len(json.dumps({**whole, "reason": ""}).encode())
    reason = str(whole.get("reason", ""))
    while len(json.dumps(reason).encode()) > room + 2 and len(reason) > len(_CUT):
        reason = shortened(reason, most=max(len(_CUT), len(reason.encode()) * 3 // 4))
    _write(json.dumps({**whole, "reason": reason}), file)


def shortened(text: str, *, most: int = MOST_BYTES) -> str:
    """At most `most` bytes of UTF-8 without NUL: the beginning, and twice as much of the end, where causes stand."""
    text = text.replace("\x00", "").encode("utf-8", "replace").decode()
    data = text.encode()
    if len(data) <= most:
        return text
    room = most - len(_CUT)
    head = room // 3
    return data[:head].decode("utf-8", "ignore") + _CUT + data[len(data) - (room - head) :].decode("utf-8", "ignore")


def _write(text: str, file: Path | None) -> None:
    path = file or environment.termination_file()
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        logger.warning("the last words cannot be written to %s: %s", path, error.strerror)
