"""Tokens and store passwords of a job, derived from the operator's key: the same from every operator, never read back.

Whoever holds the key can make every token of every job; whoever holds a job's tokens learns nothing of the key or of
another job's.
"""

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Literal

from drumroll.errors import UserError

LEAST_KEY_BYTES = 32


def derive(key: bytes, uid: str, kind: Literal["token", "store", "tls"], role: str) -> str:
    """256 bits as URL-safe text without padding.

    Raises:
        UserError: the key is too short to be one.
    """
    if len(key) < LEAST_KEY_BYTES:
        raise UserError(f"the operator's key has {len(key)} bytes: it needs {LEAST_KEY_BYTES} or more")
    digest = hmac.new(key, f"{uid}/{kind}/{role}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def read_key(path: Path) -> bytes:
    """The operator's key, without white space at its ends.

    Raises:
        UserError: the file cannot be read, or the key is too short.
    """
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"the operator's key {path} cannot be read: {error.strerror}") from error
    if len(key) < LEAST_KEY_BYTES:
        raise UserError(f"the operator's key {path} has {len(key)} bytes: it needs {LEAST_KEY_BYTES} or more")
    return key
