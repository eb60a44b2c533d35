"""From an assignment to a reported sample, or to a hand-back that says why not.

    begin (read an earlier part) -> play the episode -> wait for the proof of its weights -> stream -> report

A sample is in the stream before it is reported. While the store is away, a finished sample is kept and tried again.
Tokens of unproven weights never leave the replica.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumroll_planner.records import LeaseKind, ReturnReason
from drumroll_proto.v1 import journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.api.spec import RLJobSpec
from drumroll.clock import Clock
from drumroll.errors import DrumrollError, RewardError
from drumroll.samples import EntryKind, FinishReason, SamplePayload
from drumroll_rollout.batches import Batches
from drumroll_rollout.collaborators import Prompts, Scorer, TextDecoder
from drumroll_rollout.counters import Counters
from drumroll_rollout.engine import Engine, EngineError, GenerationRequest
from drumroll_rollout.episode import Interrupted, PromptEpisode, StageName, Stages, StageTimeout, play
from drumroll_rollout.held import HeldSample
from drumroll_rollout.patient_store import PatientStore
from drumroll_rollout.payloads import Draft, PayloadMaker, as_applied
from drumroll_rollout.rewards import RewardCrash
from drumroll_rollout.sampling import sampling_settings
from drumroll_rollout.transcript import BadSample
from drumroll_rollout.weights_loop import WeightsLoop

logger = logging.getLogger(__name__)

CONTRACT = "reward contract: "
"""First words of a hand-back's detail where the user's reward function is at fault: the job cannot go on."""
_DEAD_AFTER = 3
"""So many engine errors with no finished answer between them: the engine is dead."""

Reports = Batches[pb.SampleReport, pb.Verdict]
HandBacks = Batches[pb.HandedBack, pb.Verdict]


class EngineDead(DrumrollError):
    """The engine answers with nothing but errors."""


class _CannotStart(Exception):
    """The assignment cannot be begun here."""


@dataclass(frozen=True, slots=True)
class Workbench:
    """What making samples needs; one per replica."""

    spec: RLJobSpec
    engine: Engine
    prompts: Mapping[LeaseKind, Prompts]
    eos_token_ids: Sequence[int]
    scorer: Scorer
    decode_text: TextDecoder
    stages: Stages
    payloads: PayloadMaker
    store: PatientStore
    weights: WeightsLoop
    reports: Reports
    hand_backs: HandBacks
    counters: Counters
    clock: Clock
    on_stage: Callable[[], None] = lambda: None
    """A sample has gone on to its next stage."""


class Production:
    """See the module."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._engine_errors_in_a_row = 0

    async def produce(self, held: HeldSample) -> None:
        """Make one sample and report it, or hand it back.

        Raises:
            RewardError: the reward function breaks its contract (after the hand-back).
            EngineDead: likewise, the engine.
        """
        counters = self._bench.counters
        try:
            await self._make(held)
        except Interrupted:
            # Tokens of weights that are being probed are good in a moment, or never.
            with contextlib.suppress(Interrupted):
                await self._bench.weights.until_proven(set(held.transcript.versions))
            await self.give_back(held, ReturnReason.DRAINED)
        except _CannotStart as error:
            await self.give_back(held, ReturnReason.UNSTARTED, str(error))
        except BadSample as error:
            counters.bad_samples_total += 1
            await self._reject(held, ReturnReason.BAD_SAMPLE, str(error))
        except RewardError as error:
            counters.reward_errors_total += 1
            await self._reject(held, ReturnReason.REWARD_ERROR, f"{CONTRACT}{error}")
            raise
        except (RewardCrash, StageTimeout) as error:
            counters.reward_errors_total += 1
            await self._reject(held, ReturnReason.REWARD_ERROR, str(error))
        except EngineError as error:
            counters.engine_errors_total += 1
            self._engine_errors_in_a_row += 1
            await self.give_back(held, ReturnReason.ENGINE_ERROR, str(error))
            if self._engine_errors_in_a_row >= _DEAD_AFTER:
                raise EngineDead(f"{self._engine_errors_in_a_row} engine errors in a row; the last: {error}") from error

    async def _make(self, held: HeldSample) -> None:
        bench = self._bench
        draft = await self._begin(held)
        episode = self._episode(held, draft)

        def on_stage(stage: StageName) -> None:
            held.stage, held.stage_since = stage, bench.clock.monotonic()
            if stage is StageName.EVALUATE:
                self._engine_errors_in_a_row = 0
                draft.finished_at = bench.clock.wall()
            bench.on_stage()

        score = await play(episode, bench.stages, on_stage)
        bench.counters.reward_seconds += bench.clock.monotonic() - held.stage_since
        on_stage(StageName.STREAM)
        draft.reward, draft.reward_parts = score.reward, dict(score.parts)
        await bench.weights.until_proven(set(held.transcript.versions))
        await self._deliver(held, draft)

    async def _begin(self, held: HeldSample) -> Draft:
        bench, assignment = self._bench, held.assignment
        if assignment.exactly is not None and (bench.weights.updating or bench.weights.attested != assignment.exactly):
            raise _CannotStart(f"version {assignment.exactly} is asked for, {bench.weights.attested} is loaded")
        prompts = bench.prompts.get(assignment.kind)
        if prompts is None or assignment.row >= len(prompts):
            raise _CannotStart(f"there is no {assignment.kind} prompt of row {assignment.row}")
        settings = sampling_settings(bench.spec, eos_token_ids=bench.eos_token_ids, kind=assignment.kind)
        draft = Draft(
            row=assignment.row,
            prompt_ids=prompts.prompt_ids(assignment.row),
            sampling=settings,
            planned_tokens=assignment.predicted_tokens,
            started_at=bench.clock.wall(),
        )
        earlier = await bench.store.earlier(assignment)
        if earlier is not None and _fits(earlier, draft, bench.payloads):
            draft.earlier = earlier
        held.draft = draft
        held.earlier_tokens = len(draft.earlier_ids)
        return draft

    def _episode(self, held: HeldSample, draft: Draft) -> PromptEpisode:
        bench, assignment = self._bench, held.assignment
        done = draft.earlier_ids
        sampling = replace(draft.sampling, max_tokens=max(0, draft.sampling.max_tokens - len(done)))
        request = GenerationRequest(
            request_id=assignment.request_id,
            prompt_ids=[*draft.prompt_ids, *done],
            sampling=sampling,
            row=assignment.row,
            index=assignment.index,
            done_tokens=len(done),
        )
        whole = draft.earlier_finish is not FinishReason.DRAINED
        return PromptEpisode(
            engine=bench.engine,
            request=None if whole else request,
            transcript=held.transcript,
            earlier_ids=done,
            scorer=bench.scorer,
            decode=bench.decode_text,
            inputs=bench.prompts[assignment.kind].reward_inputs(assignment.row),
            finished=lambda: (held.transcript.finish_reason or draft.earlier_finish) == "stop",
            interrupted=held.interrupted,
            # An evaluation is one version's from its first to its last token: it stays here.
            hand_over_after=bench.spec.rollout.partial_every_tokens or None
            if assignment.kind is LeaseKind.TRAIN
            else None,
        )

    async def _deliver(self, held: HeldSample, draft: Draft) -> None:
        payload = self._bench.payloads.make(draft, held.transcript)
        if payload is None:
            raise BadSample("the answer has no token")
        ref = await self._bench.store.add(held.assignment, EntryKind.SAMPLE, payload)
        sequence = payload.sequences[0]
        held.settling = True
        verdict = await self._bench.reports.submit(
            pb.SampleReport(
                lease_id=held.assignment.lease_id,
                sample=held.assignment.sample_id,
                entry=ref.to_proto(),
                oldest_version=payload.oldest_version,
                newest_version=payload.newest_version,
                num_tokens=sequence.num_completion_tokens,
                reward=sequence.reward,
                finished=sequence.finish_reason is FinishReason.STOP,
                started_at=payload.started_at,
                finished_at=payload.finished_at,
            )
        )
        self._settle_report(held, verdict)

    def _settle_report(self, held: HeldSample, verdict: pb.Verdict) -> None:
        held.settled = True
        counters = self._bench.counters
        if verdict.accepted:
            counters.samples_total += 1
            counters.tokens_reported += len(held.transcript)
        else:
            counters.tokens_unwanted += len(held.transcript)
            logger.info("%s: the report is refused: %s", held.assignment, verdict.reason)

    async def give_back(self, held: HeldSample, reason: ReturnReason, detail: str = "") -> None:
        """Hand a sample back with all its usable tokens as a partial entry, for another replica to go on from."""
        weights, counters = self._bench.weights, self._bench.counters
        made = len(held.transcript)
        held.transcript.cut_where(lambda version: not weights.is_proven(version))
        kept = len(held.transcript)
        counters.tokens_lost += made - kept
        partial = None
        if kept and held.draft is not None:
            try:
                partial = await self._add_partial(held, held.draft)
            except BadSample as error:
                detail = f"{detail}; its part cannot be kept: {error}"
        verdict = await self._hand_back(held, reason, detail, partial)
        if not verdict.accepted:
            counters.tokens_unwanted += kept
        elif partial is not None:
            counters.tokens_handed_over += kept
        else:
            counters.tokens_lost += kept

    async def _add_partial(self, held: HeldSample, draft: Draft) -> journal_pb2.PartialRef | None:
        draft.finished_at = draft.finished_at or self._bench.clock.wall()
        payload = self._bench.payloads.make(draft, held.transcript)
        if payload is None:
            return None
        ref = await self._bench.store.add(held.assignment, EntryKind.PARTIAL, payload)
        return journal_pb2.PartialRef(
            entry_id=ref.entry_id,
            sha256=ref.sha256,
            num_bytes=ref.num_bytes or 0,
            num_tokens=payload.sequences[0].num_completion_tokens,
            oldest_version=payload.oldest_version,
        )

    async def _reject(self, held: HeldSample, reason: ReturnReason, detail: str) -> None:
        """Hand a sample back without its tokens: they, or their reward, are no good."""
        logger.warning("%s: %s: %s", held.assignment, reason.value, detail)
        self._bench.counters.tokens_spoiled += len(held.transcript)
        await self._hand_back(held, reason, detail, None)

    async def _hand_back(
        self,
        held: HeldSample,
        reason: ReturnReason,
        detail: str,
        partial: journal_pb2.PartialRef | None,
    ) -> pb.Verdict:
        held.settling = True
        verdict = await self._bench.hand_backs.submit(
            pb.HandedBack(
                lease_id=held.assignment.lease_id,
                sample=held.assignment.sample_id,
                reason=journal_pb2.ReturnReason.Value(f"RETURN_REASON_{reason.name}"),
                partial=partial,
                detail=detail,
            )
        )
        held.settled = True
        if not verdict.accepted:
            logger.info("%s: the hand-back is refused: %s", held.assignment, verdict.reason)
        return verdict


def _fits(earlier: SamplePayload, draft: Draft, payloads: PayloadMaker) -> bool:
    """Whether an earlier part can be gone on with under today's settings; if not, the sample begins anew."""
    sampling = as_applied(draft.sampling, max_tokens=payloads.max_response_tokens)
    sequence = earlier.sequences[0]
    fits = (
        earlier.sampling == sampling
        and earlier.row == draft.row
        and earlier.tokenizer_digest == payloads.tokenizer_digest
        and sequence.prompt_ids.tolist() == list(draft.prompt_ids)
    )
    if not fits:
        logger.warning("row %d: the earlier part was made under other settings; beginning anew", draft.row)
    return fits
