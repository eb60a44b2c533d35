"""A trainer that speaks the real protocol and learns nothing: for tests and benches of the scheduler.

It reads the entries that a decision names, checks its chain, announces a version for each step, writes checkpoints
(what the scheduler needs of them) and commits. Killed and started again it goes on from the newest checkpoint.
"""

import json
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest
from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.entries import EntryRef
from drumroll.errors import JobFailed, SampleLost
from drumroll.rpc import PROTOCOL_VERSION, SchedulerClient
from drumroll.store import retrying
from drumroll.stream import SampleStream
from drumroll_scheduler.translate import decided as read_decided


@dataclass(frozen=True, slots=True)
class Held:
    """Where a trainer stands: the next step, and what it holds before it."""

    step: int = 0
    chain: str = ""
    version: int = 0
    lineage: int = 0


def newest_checkpoint(checkpoints_dir: Path) -> Held:
    """What the newest complete checkpoint holds; the beginning where there is none."""
    for folder in sorted(checkpoints_dir.glob("step_*"), reverse=True):
        if (folder / "complete.json").exists():
            return Held(**json.loads((folder / "complete.json").read_text()))
    return Held()


def checkpoint_at(checkpoints_dir: Path, step: int) -> Held:
    """What the complete checkpoint before `step` holds; the beginning for step 0."""
    if step == 0:
        return Held()
    return Held(**json.loads((checkpoints_dir / f"step_{step:06d}" / "complete.json").read_text()))


def write_checkpoint(checkpoints_dir: Path, held: Held, snapshot: Path) -> Path:
    """Write a checkpoint's folder, complete.json last; its path."""
    folder = checkpoints_dir / f"step_{held.step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ledger.snapshot").write_bytes(snapshot.read_bytes())
    (folder / "complete.json").write_text(json.dumps(asdict(held)))
    return folder


class ScriptedTrainer:
    """See the module."""

    def __init__(
        self, client: SchedulerClient, stream: SampleStream, checkpoints_dir: Path, *, wait_ms: int = 1000
    ) -> None:
        self.trained: list[r.Decided] = []
        """Every decision that was trained by this process, in order."""
        self.rewinds = 0
        self.sent_known = 0
        self.epoch = 0
        self.held = newest_checkpoint(checkpoints_dir)
        self._client = client
        self._stream = stream
        self._checkpoints_dir = checkpoints_dir
        self._wait_ms = wait_ms
        self._messages: list[journal_pb2.Decided] = []

    async def run(self) -> None:
        """Train until the job has no more steps.

        Raises:
            JobFailed: the scheduler says so.
        """
        await self.register()
        while await self.take_step():
            pass

    async def register(self) -> None:
        """Take over, and make the version known that is held."""
        held = self.held
        request = pb.RegisterRequest(
            role=pb.ROLE_TRAINER,
            min_protocol=PROTOCOL_VERSION,
            max_protocol=PROTOCOL_VERSION,
            step=held.step,
            chain=held.chain,
            version=held.version,
            lineage=held.lineage,
            instance=uuid.uuid4().hex,
        )
        self.epoch = (await self._client.register(request)).trainer_epoch
        await self._announce()

    async def take_step(self, known: list[journal_pb2.Decided] | None = None) -> bool:
        """Ask for the next step and do what the answer says; False when there are no more."""
        request = pb.NextStepRequest(
            trainer_epoch=self.epoch,
            step=self.held.step,
            chain=self.held.chain,
            wait_ms=self._wait_ms,
            known=known or [],
        )
        reply = await self._client.next_step(request)
        match reply.outcome:
            case pb.NEXT_STEP_OUTCOME_DECIDED:
                await self._train(reply.decision)
            case pb.NEXT_STEP_OUTCOME_SEND_KNOWN:
                self.sent_known += 1
                return await self.take_step(list(self._messages))
            case pb.NEXT_STEP_OUTCOME_REWIND:
                await self._rewind(reply.rewind)
            case pb.NEXT_STEP_OUTCOME_FAILED:
                raise JobFailed(reply.reason)
            case _:
                pass
        return reply.outcome != pb.NEXT_STEP_OUTCOME_FINISHED

    async def _train(self, message: journal_pb2.Decided) -> None:
        decided, started = read_decided(message), time.time()
        assert decided.chain == chain_digest(self.held.chain, decided)
        assert (decided.version, decided.lineage) == (self.held.version, self.held.lineage)
        refs = [EntryRef(one.entry_id, one.sha256) for ticket in decided.tickets for one in ticket.samples]
        try:
            await retrying(lambda: self._stream.read(refs), deadline_s=60.0)
        except SampleLost as error:
            await self._report_lost(message, set(error.entry_ids))
            return
        await self.learn(decided)
        self.trained.append(decided)
        self._messages.append(message)
        self.held = Held(decided.step + 1, decided.chain, decided.version + 1, decided.lineage)
        await self._announce()
        await self._commit(decided, started)

    async def learn(self, decided: r.Decided) -> None:
        """Take the step; here it takes no time."""

    async def _report_lost(self, message: journal_pb2.Decided, entry_ids: set[str]) -> None:
        lost = [
            common_pb2.SampleId(ticket=ticket.ticket, index=one.index, attempt=one.attempt)
            for ticket in message.tickets
            for one in ticket.samples
            if one.entry_id in entry_ids
        ]
        await self._client.commit(pb.CommitRequest(trainer_epoch=self.epoch, step=message.step, lost=lost))

    async def _commit(self, decided: r.Decided, started: float) -> None:
        reply = await self._client.commit(
            pb.CommitRequest(
                trainer_epoch=self.epoch,
                has_step=True,
                step=decided.step,
                version=self.held.version,
                chain=decided.chain,
                stats={"loss": 0.5},
                started_at=started,
                finished_at=time.time(),
            )
        )
        if reply.ledger_snapshot:
            await self._checkpoint(Path(reply.ledger_snapshot))

    async def _checkpoint(self, snapshot: Path) -> None:
        held = self.held
        folder = write_checkpoint(self._checkpoints_dir, held, snapshot)
        covered = journal_pb2.Covered(
            step=held.step, version=held.version, lineage=held.lineage, checkpoint=folder.name
        )
        await self._client.commit(pb.CommitRequest(trainer_epoch=self.epoch, covered=covered))

    async def _rewind(self, rewind: journal_pb2.Rewound) -> None:
        self.rewinds += 1
        # Not simply the newest: one that the ledger never heard of is of the abandoned history.
        kept = checkpoint_at(self._checkpoints_dir, rewind.step)
        self.held = Held(kept.step, kept.chain, rewind.version, rewind.lineage)
        self._messages = [message for message in self._messages if message.step < rewind.step]
        await self._announce()

    async def _announce(self) -> None:
        held = self.held
        weights = journal_pb2.Announced(
            version=held.version,
            step=held.step,
            lineage=held.lineage,
            manifest_sha256=f"manifest-{held.version}",
            weights_digest=f"weights-{held.version}",
        )
        await self._client.announce(pb.AnnounceRequest(trainer_epoch=self.epoch, weights=weights))
