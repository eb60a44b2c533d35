"""The examples' cluster forms are the examples."""

from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[3] / "examples"


def _spec(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((EXAMPLES / path).read_text())["spec"])


def test_first_light_has_the_same_recipe_on_a_cluster() -> None:
    here, there = _spec("first-light.yaml"), _spec("cluster/first-light.yaml")
    for spec in (here, there):
        for path in (spec["model"], spec["data"]["train"]):
            path["path"] = path["path"].removeprefix("../models/")
        for role in ("rollout", "trainer"):
            spec[role].pop("resources", None)
        spec.pop("weights", None)
    assert here == there


def test_each_cluster_example_names_the_claim_that_its_head_tells_of() -> None:
    jobs = [path for path in (EXAMPLES / "cluster").glob("*.yaml") if "kind: RLJob" in path.read_text()]
    assert len(jobs) == 2
    for path in jobs:
        volume = yaml.safe_load(path.read_text())["spec"]["weights"]["volume"]
        assert volume == {"persistentVolumeClaim": {"claimName": "drumroll"}}
