"""What views, metrics and a restart need to know of the run so far: a fold over the journal's records.

The policy decides; this only remembers. It is fed each record once, in order, when it is applied or replayed.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from drumroll_planner import records as r

RECENT = 50

_TROUBLE = {
    r.ReturnReason.EXPIRED: "LeaseExpired",
    r.ReturnReason.BAD_SAMPLE: "BadSample",
    r.ReturnReason.REWARD_ERROR: "RewardError",
    r.ReturnReason.ENGINE_ERROR: "EngineError",
    r.ReturnReason.REPLICA_LOST: "ReplicaLost",
}
"""Returns that people should know of: the name of their note."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Policy lag over the samples of a step, in policy versions."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A step of the final story."""

    step: int
    version: int
    """The version that it made."""
    lineage: int
    time: float
    stats: Mapping[str, float]
    lag: Lag | None


@dataclass(slots=True)
class Replica:
    """A registered replica."""

    instance: str
    slots: int
    attested: int | None = None
    leases: set[str] = field(default_factory=set)


def lag_of(decided: r.Decided) -> Lag | None:
    """Lag of a decision's samples; None where it has none."""
    lags = [decided.version - sample.oldest_version for ticket in decided.tickets for sample in ticket.samples]
    return Lag(min(lags), sum(lags) / len(lags), max(lags)) if lags else None


class Story:
    """See the module."""

    def __init__(self) -> None:
        self.opened: r.JobOpened | None = None
        self.ended: r.JobEnded | None = None
        self.plans: dict[int, r.PassPlanned] = {}
        self.live: dict[str, int] = {}
        self.steps_decided = 0
        self.steps_done = 0
        self.version = 0
        self.lineage = 0
        self.covered: r.Covered | None = None
        self.newest: r.Announced | None = None
        self.trainer_epoch = 0
        self.replicas: dict[str, Replica] = {}
        self.recent: deque[TrainedStep] = deque(maxlen=RECENT)
        self.notes: deque[r.Noted] = deque(maxlen=RECENT)
        self.evaluated: r.Evaluated | None = None
        """The newest evaluation's end."""
        self.evaluated_well: r.Evaluated | None = None
        """The newest one that scored anything."""
        self._lags: dict[int, Lag | None] = {}

    def apply(self, record: r.Record, time: float) -> TrainedStep | None:
        """Take one record in; returns the step that it says was trained."""
        match record:
            case r.Decided():
                self._lags[record.step] = lag_of(record)
                self.steps_decided = max(self.steps_decided, record.step + 1)
            case r.Trained():
                return self._trained(record, time)
            case r.Rewound():
                self._rewound(record)
            case r.Covered():
                self.covered = record
            case r.Announced():
                self.newest = record if self.newest is None or record.version > self.newest.version else self.newest
            case r.ReplayDiverged():
                self.notes.append(
                    r.Noted("ReplayDiverged", f"replay of version {record.version} made other weights than published")
                )
            case r.Noted():
                self.notes.append(record)
            case r.Evaluated():
                self.evaluated = record
                self.evaluated_well = record if record.num_samples else self.evaluated_well
            case _:
                self._membership(record)
        return None

    def _membership(self, record: r.Record) -> None:
        match record:
            case r.ReplicaJoined():
                self.replicas[record.replica] = Replica(record.instance, record.slots)
            case r.ReplicaLeft():
                self.replicas.pop(record.replica, None)
            case r.Attested():
                if record.replica in self.replicas:
                    self.replicas[record.replica].attested = record.version
            case r.Leased():
                if record.replica in self.replicas:
                    self.replicas[record.replica].leases.add(record.lease_id)
            case r.Accepted() | r.Returned():
                for name, replica in self.replicas.items():
                    if record.lease_id in replica.leases:
                        replica.leases.discard(record.lease_id)
                        self._note_trouble(name, record)
            case r.Ended(end=r.TicketEnd.FAILED):
                self.notes.append(r.Noted("TicketFailed", record.reason))
            case _:
                self._job(record)

    def _note_trouble(self, name: str, record: r.Accepted | r.Returned) -> None:
        if isinstance(record, r.Returned) and record.reason in _TROUBLE:
            what = f"ticket {tuple(record.ticket)} sample {record.index} came back from replica {name}"
            self.notes.append(r.Noted(_TROUBLE[record.reason], f"{what}: {record.detail or record.reason}"))

    def _job(self, record: r.Record) -> None:
        match record:
            case r.JobOpened():
                before, self.opened = self.opened, record
                if before is not None and (before.data_digest, before.seed) != (record.data_digest, record.seed):
                    self.plans.clear()
            case r.JobEnded():
                self.ended = record
            case r.PassPlanned():
                self.plans[record.epoch] = record
                # A small data set makes many passes, and none but the last two is planned again after a restart.
                for epoch in [epoch for epoch in self.plans if epoch < record.epoch - 1]:
                    del self.plans[epoch]
            case r.LiveSet():
                self.live[record.name] = record.value
            case r.TrainerRegistered():
                self.trainer_epoch = record.trainer_epoch
            case _:
                pass

    def _trained(self, record: r.Trained, time: float) -> TrainedStep:
        lag = self._lags.pop(record.step, None)
        done = TrainedStep(record.step, record.version, self.lineage, time, dict(record.stats), lag)
        self.recent.append(done)
        self.steps_done = max(self.steps_done, record.step + 1)
        self.version = record.version
        return done

    def _rewound(self, record: r.Rewound) -> None:
        self.steps_decided = min(self.steps_decided, record.step)
        self.steps_done = min(self.steps_done, record.step)
        self.version, self.lineage = record.version, record.lineage
        self._lags = {step: lag for step, lag in self._lags.items() if step < record.step}
        kept = [step for step in self.recent if step.step < record.step]
        self.recent = deque(kept, maxlen=RECENT)
        self.notes.append(r.Noted("Rewound", f"back to step {record.step}, lineage {record.lineage}: {record.reason}"))

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `from_json` restores it exactly."""
        return {
            "opened": asdict(self.opened) if self.opened else None,
            "ended": asdict(self.ended) if self.ended else None,
            "plans": [asdict(plan) for plan in self.plans.values()],
            "live": self.live,
            "steps_decided": self.steps_decided,
            "steps_done": self.steps_done,
            "version": self.version,
            "lineage": self.lineage,
            "covered": asdict(self.covered) if self.covered else None,
            "newest": asdict(self.newest) if self.newest else None,
            "trainer_epoch": self.trainer_epoch,
            "replicas": {
                name: {**asdict(replica), "leases": sorted(replica.leases)} for name, replica in self.replicas.items()
            },
            "recent": [asdict(step) for step in self.recent],
            "notes": [asdict(note) for note in self.notes],
            "evaluated": asdict(self.evaluated) if self.evaluated else None,
            "evaluated_well": asdict(self.evaluated_well) if self.evaluated_well else None,
            "lags": {str(step): asdict(lag) if lag else None for step, lag in self._lags.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Story":
        """The story that `to_json` wrote."""
        story = cls()
        story.opened = r.JobOpened(**data["opened"]) if data["opened"] else None
        if data["ended"]:
            story.ended = r.JobEnded(r.JobOutcome(data["ended"]["outcome"]), data["ended"]["reason"])
        story.plans = {plan["epoch"]: r.PassPlanned(**plan) for plan in data["plans"]}
        story.live = dict(data["live"])
        story.steps_decided, story.steps_done = data["steps_decided"], data["steps_done"]
        story.version, story.lineage = data["version"], data["lineage"]
        story.covered = r.Covered(**data["covered"]) if data["covered"] else None
        story.newest = r.Announced(**data["newest"]) if data["newest"] else None
        story.trainer_epoch = data["trainer_epoch"]
        story.replicas = {
            name: Replica(one["instance"], one["slots"], one["attested"], set(one["leases"]))
            for name, one in data["replicas"].items()
        }
        story.recent.extend(
            TrainedStep(**{**step, "lag": Lag(**step["lag"]) if step["lag"] else None}) for step in data["recent"]
        )
        story.evaluated = _evaluated(data.get("evaluated"))
        story.evaluated_well = _evaluated(data.get("evaluated_well"))
        story.notes.extend(r.Noted(**note) for note in data["notes"])
        story._lags = {int(step): Lag(**lag) if lag else None for step, lag in data["lags"].items()}
        return story


def _evaluated(data: Mapping[str, Any] | None) -> r.Evaluated | None:
    return r.Evaluated(**data) if data else None
