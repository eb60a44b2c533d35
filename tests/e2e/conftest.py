"""Whole jobs on a real cluster, as a platform team and its users run them. See `kit.session` for which cluster."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.jobs import SPEC, ClusterJob, unique
from kit.place import Place
from kit.session import OWNER, Cluster, close_run, open_cluster, take_ownership
from kit.turns import Finished, turn

from drumroll.testing import merged

_PLACES = pytest.StashKey[list[Place]]()
_CLUSTER = pytest.StashKey[Cluster]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        take_ownership()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        close_run()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests about the whole run come last."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure tells what the cluster looked like."""
    report: Any = yield
    if report.failed and call.when in ("setup", "call") and _CLUSTER in item.config.stash:
        stories = [place.story() for place in item.stash.get(_PLACES, [])]
        stories.append(item.config.stash[_CLUSTER].release.story())
        report.sections += [("cluster", story) for story in stories]
    return report


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster with the operator in it."""
    with open_cluster() as opened:
        request.config.stash[_CLUSTER] = opened
        yield opened


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[None]:
    finished = Finished(os.environ[OWNER])
    if request.node.get_closest_marker("last"):
        first = [item for item in request.session.items if not item.get_closest_marker("last")]
        finished.wait_for(item.nodeid for item in first if "cluster" in item.fixturenames)
    with turn(alone=request.node.get_closest_marker("alone") is not None):
        yield
    finished.add(request.node.nodeid)


@pytest.fixture
def make_place(request: pytest.FixtureRequest, cluster: Cluster, _turn: None) -> Iterator[Callable[[], Place]]:
    """A new namespace at each call."""
    places: list[Place] = []
    request.node.stash[_PLACES] = places

    def make() -> Place:
        places.append(cluster.place(unique("e2e")))
        return places[-1]

    yield make
    for place in places:
        place.remove()


@pytest.fixture
def place(make_place: Callable[[], Place]) -> Place:
    """A namespace of the test's own."""
    return make_place()


@pytest.fixture
def make_job(cluster: Cluster, place: Place) -> Callable[..., ClusterJob]:
    """make_job(name="job", place=..., **changes of the spec), not applied yet."""

    def make(name: str = "job", *, place: Place = place, **changes: Any) -> ClusterJob:
        return ClusterJob(place, cluster.bench, name, merged(SPEC, changes), cluster.kill_container)

    return make
