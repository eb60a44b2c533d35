"""Job texts that tests of the RLJob start from."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from drumroll.api.editing import edited


class _Dumper(yaml.SafeDumper):
    """Quotes what kubectl's YAML would read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[0-9]+e[0-9]+$"), list("0123456789"))

MINIMAL = {
    "apiVersion": "drumroll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"path": "models/tiny"},
        "data": {"train": {"path": "data/train.jsonl"}},
        "reward": {"type": "math"},
    },
}


@pytest.fixture(scope="session")
def job_text() -> Callable[..., str]:
    """Makes the text of a minimal job with changes by dotted path: `job_text({"spec.steps": 3})`."""

    def make(changes: dict[str, Any] | None = None) -> str:
        return yaml.dump(edited(MINIMAL, changes or {}), Dumper=_Dumper, sort_keys=False)

    return make
