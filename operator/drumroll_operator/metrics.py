"""The operator's own metrics, all named drumroll_operator_*. Gauges are read when they are scraped."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PREFIX = "drumroll_operator"

Reading = Callable[[], Iterable[tuple[tuple[str, ...], float]]]
"""Label values with a gauge's value for each."""


class Metrics:
    """One registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._gauges: list[tuple[str, str, tuple[str, ...], Reading]] = []
        self._reconciles = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "Time of one reconcile, by its result.",
            ["result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._waits = Histogram(
            f"{PREFIX}_queue_wait_seconds",
            "Time from a job's due time to the start of its reconcile.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._actions = Histogram(
            f"{PREFIX}_action_seconds",
            "Time of one action of a plan, by what it is and how it ended.",
            ["action", "result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._requests = Counter(
            f"{PREFIX}_api_requests",
            "Requests to the API server by verb, resource and HTTP status; code 0 is no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.registry.register(self)

    def reconciled(self, result: str, seconds: float) -> None:
        """A reconcile has ended: ok, error."""
        self._reconciles.labels(result).observe(seconds)

    def waited(self, seconds: float) -> None:
        """A key has waited for a worker."""
        self._waits.observe(seconds)

    def acted(self, what: str, seconds: float) -> None:
        """An action was done; `what`: its kind and its result."""
        action, _, result = what.partition(" ")
        self._actions.labels(action, result).observe(seconds)

    def requested(self, verb: str, resource: str, code: int) -> None:
        """The API server answered a request, or did not."""
        self._requests.labels(verb, resource, str(code)).inc()

    def gauge(self, name: str, text: str, labels: tuple[str, ...], reading: Reading) -> None:
        """A gauge that is read when it is scraped."""
        self._gauges.append((f"{PREFIX}_{name}", text, labels, reading))

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names of gauges are known when they are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges."""
        for name, text, labels, reading in self._gauges:
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, value in reading():
                family.add_metric(values, value)
            yield family

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


def counted(values: Iterable[str]) -> list[tuple[tuple[str, ...], float]]:
    """How often each value occurs, as a gauge with one label."""
    return [((value,), float(count)) for value, count in sorted(Counts(values).items())]
