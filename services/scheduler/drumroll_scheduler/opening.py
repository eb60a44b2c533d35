"""The start of a scheduler: take the ledger over, replay it into a policy, refuse what may not have changed.

store holds the ledger                    -> snapshot and tail
store is empty, the volume knows the job  -> checkpoint and archived segments, into a new ledger
neither                                   -> a new job
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.codec import from_proto
from drumroll_planner.evaluation import EvalRounds
from drumroll_planner.planners import build_planner
from drumroll_planner.policy import Policy, Rules
from drumroll_proto.v1 import journal_pb2

from drumroll.api.spec import RLJobSpec
from drumroll.clock import Clock
from drumroll.data import DatasetInfo, PreparedDataset
from drumroll.errors import DataError, JobError, StoreLost
from drumroll.job import ResolvedJob
from drumroll.ledger import Ledger
from drumroll.segments import replace_file
from drumroll.store import Redis
from drumroll_scheduler.archive import read_incarnation, write_incarnation
from drumroll_scheduler.core import Core
from drumroll_scheduler.journal import Journal
from drumroll_scheduler.lines import LinesFile, MetricsFile
from drumroll_scheduler.planning import PassPlanner, PlanSettings
from drumroll_scheduler.recovery import archived_story
from drumroll_scheduler.rules import eval_rules_of, rules_digest, rules_of
from drumroll_scheduler.snapshot import LedgerSnapshot, compress, decode
from drumroll_scheduler.status import metrics_row, missing_rows
from drumroll_scheduler.story import Story

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Past:
    """A policy and its story, as far as the journal tells."""

    policy: Policy
    story: Story
    last_seq: int
    num_records: int = 0
    """Behind the snapshot."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Changes that a resume may bring, each by its named flag."""

    data: bool = False
    """--accept-data-change"""
    job: bool = False
    """--accept-job-change"""


@dataclass(frozen=True, slots=True)
class Opened:
    """A core whose ledger is this scheduler's."""

    core: Core
    store_was_lost: bool


def replay(
    rules: Rules,
    snapshot: LedgerSnapshot | None,
    entries: Sequence[tuple[int, bytes]],
    *,
    incarnation: int,
) -> Past:
    """Take the snapshot, then every record behind it.

    Raises:
        CorruptError: an entry is not a journal entry.
    """
    if snapshot is None:
        policy, story, last_seq = Policy(rules, incarnation=incarnation), Story(), 0
    else:
        policy = Policy.from_snapshot(rules, snapshot.policy, incarnation=incarnation)
        story, last_seq = Story.from_json(snapshot.story), snapshot.upto_seq
    num_records = 0
    for seq, data in entries:
        for message in journal_pb2.JournalEntry.FromString(data).records:
            record = from_proto(message)
            policy.apply(record)
            story.apply(record, message.time)
            num_records += 1
        last_seq = seq
    return Past(policy, story, last_seq, num_records)


def check_unchanged(
    before: r.JobOpened | None, opened: r.JobOpened, spec: RLJobSpec, accept: Accept
) -> tuple[r.Record, ...]:
    """What is journaled of a start or a resume: the job's opening, where it is new or may change (case W6).

    Raises:
        DataError: other data than at the start, without --accept-data-change.
        JobError: other fixed values than at the start, without --accept-job-change.
    """
    if before is None or before == opened:
        return () if before is not None else (opened,)
    if before.data_digest != opened.data_digest and not accept.data:
        raise DataError(
            f"data.train was {before.num_prompts} rows with digest {before.data_digest[:16]} when this job started "
            f"and is now {opened.num_prompts} rows with digest {opened.data_digest[:16]}; give it the same data, "
            "start a new job, or resume with --accept-data-change"
        )
    same = before.rules_digest == rules_digest(spec, before.data_digest) and before.model_digest == opened.model_digest
    if not same and not accept.job:
        raise JobError(
            "groupSize, promptsPerStep, maxPolicyLag, seed, planner or model differ from those that this job started "
            "with; put the old values back, start a new job, or resume with --accept-job-change"
        )
    return (opened,)


def doubts(rules: Rules) -> tuple[r.Record, ...]:
    """What is allowed in a job and its data but probably not meant."""
    if rules.num_prompts >= rules.prompts_per_step:
        return ()
    message = (
        f"data.train has {rules.num_prompts} prompts, fewer than promptsPerStep ({rules.prompts_per_step}): "
        "a step holds some of them more than once"
    )
    logger.warning("%s", message)
    return (r.Noted("DataSmallerThanStep", message),)


def opening_record(job: ResolvedJob, dataset: PreparedDataset) -> r.JobOpened:
    """What a job is opened with."""
    return r.JobOpened(
        job_uid=job.uid,
        rules_digest=rules_digest(job.spec, dataset.info.digest),
        data_digest=dataset.info.digest,
        num_prompts=dataset.info.num_prompts,
        seed=job.spec.seed,
        model_digest=model_digest(Path(job.layout.model_dir)),
    )


def model_digest(model_dir: Path) -> str:
    """SHA-256 of the model's config.json, hexadecimal; empty where there is none (a replayed engine needs no model)."""
    try:
        return hashlib.sha256((model_dir / "config.json").read_bytes()).hexdigest()
    except OSError:
        return ""


async def _take_over(job: ResolvedJob, rules: Rules, redis: Redis) -> tuple[Ledger, bool]:
    """The ledger, and whether the store had lost it."""
    journal_dir = job.layout.journal_dir
    floor = read_incarnation(journal_dir)
    try:
        ledger = await Ledger.open(redis, job.uid, floor=floor)
    except StoreLost as error:
        logger.error("the store lost the ledger: %s", error)
        return await _rebuild(job, rules, redis, floor), True
    if floor and ledger.last_seq == 0 and ledger.snapshot is None:
        logger.error("the store is empty, but incarnation %d of this job has been here", floor)
        return await _rebuild(job, rules, redis, floor), True
    return ledger, False


async def _rebuild(job: ResolvedJob, rules: Rules, redis: Redis, floor: int) -> Ledger:
    layout = job.layout
    snapshot, entries = archived_story(
        checkpoints_dir=layout.checkpoints_dir, journal_dir=layout.journal_dir, job_uid=job.uid
    )
    past = replay(rules, snapshot, entries, incarnation=floor)
    whole = LedgerSnapshot(
        job_uid=job.uid,
        upto_seq=past.last_seq,
        incarnation=floor,
        policy=past.policy.snapshot(),
        story=past.story.to_json(),
        checkpoint=snapshot.checkpoint if snapshot is not None else None,
    )
    data = compress(whole.to_json())
    return await Ledger.rebuild(redis, job.uid, snapshot=data, upto_seq=past.last_seq, floor=floor)


async def open_job(job: ResolvedJob, redis: Redis, *, clock: Clock, accept: Accept, give_up_s: float) -> Opened:
    """Take the job over.

    Raises:
        DataError, JobError: it may not go on like this.
        CorruptError: ledger, archive or prepared data are damaged.
        StoreUnavailable: the store does not answer.
    """
    dataset = PreparedDataset.open(Path(job.layout.data_dir), "train")
    rules = rules_of(job, dataset.info.num_prompts)
    ledger, was_lost = await _take_over(job, rules, redis)
    await asyncio.to_thread(_note_start, job, ledger.incarnation)
    snapshot = decode(ledger.snapshot, job_uid=job.uid) if ledger.snapshot else None
    past = replay(rules, snapshot, ledger.entries, incarnation=ledger.incarnation)
    opening = check_unchanged(past.story.opened, opening_record(job, dataset), job.spec, accept)
    journal = Journal(ledger, tail=ledger.entries, last_seq=ledger.last_seq, clock=clock, give_up_s=give_up_s)
    # Counted, or a scheduler that is killed again and again would never archive.
    journal.num_tail_records = past.num_records
    core = Core(
        rules=rules,
        policy=past.policy,
        story=past.story,
        journal=journal,
        passes=_passes_of(job, dataset, past.story, clock),
        clock=clock,
        evaluation=EvalRounds(
            eval_rules_of(job, _num_eval_prompts(job)), incarnation=ledger.incarnation, last=past.story.evaluated
        ),
        metrics=_metrics_of(job),
        timeline=LinesFile(_beside_metrics(job, "timeline.jsonl")),
        evaluations=_evaluations_of(job),
    )
    core.policy.restored(clock.monotonic())
    for step in missing_rows(core.story, core.metrics.last_step):
        core.metrics.add_step(metrics_row(step, {}))
    core.take((*opening, *(doubts(rules) if opening else ())))
    if was_lost and snapshot is not None and snapshot.checkpoint is not None:
        core.take(_coverage_of(core, snapshot))
    return Opened(core, was_lost)


def _passes_of(job: ResolvedJob, dataset: PreparedDataset, story: Story, clock: Clock) -> PassPlanner:
    scheduler = job.spec.scheduler
    settings = PlanSettings(
        seed=job.spec.seed,
        learns=scheduler.planner == "asp" and scheduler.length_model != "none",
        plans_dir=Path(job.layout.job_dir) / "plans",
        job_file=job.layout.journal_dir / "job.json",
    )
    return PassPlanner(
        planner=build_planner(scheduler.planner),
        settings=settings,
        prompt_tokens=dataset.prompt_tokens(),
        clock=clock.monotonic,
        journaled=lambda epoch: story.plans.get(epoch),
    )


def _note_start(job: ResolvedJob, incarnation: int) -> None:
    """Beside the journal: the incarnation, and the job as it is now, so that an audit needs this folder alone."""
    write_incarnation(job.layout.journal_dir, incarnation)
    replace_file(job.layout.journal_dir / "job.json", job.to_json().encode())


def _coverage_of(core: Core, snapshot: LedgerSnapshot) -> Sequence[r.Record]:
    """The checkpoint that the snapshot came from is complete: its coverage was journaled after it, and got lost."""
    mark = snapshot.checkpoint
    assert mark is not None
    covered_step = core.story.covered.step if core.story.covered is not None else 0
    if covered_step >= mark.step:
        return ()
    return core.policy.covered(r.Covered(mark.step, mark.version, mark.lineage, f"step_{mark.step:06d}"))


def _metrics_of(job: ResolvedJob) -> MetricsFile:
    metrics = MetricsFile(Path(job.metrics_path) if job.metrics_path else None)
    metrics.mend()
    return metrics


def _evaluations_of(job: ResolvedJob) -> LinesFile:
    evaluations = LinesFile(_beside_metrics(job, "eval.jsonl"))
    evaluations.mend()
    return evaluations


def _beside_metrics(job: ResolvedJob, name: str) -> Path | None:
    return Path(job.metrics_path).with_name(name) if job.metrics_path else None


def _num_eval_prompts(job: ResolvedJob) -> int:
    info = DatasetInfo.load(Path(job.layout.data_dir)).eval
    return 0 if info is None else info.num_prompts
