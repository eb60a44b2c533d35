"""What is sent of a sample: the payload, from this replica's transcript and what others made before."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from drumroll.errors import CorruptError
from drumroll.samples import (
    FinishReason,
    Limits,
    SamplePayload,
    Sampling,
    check_payload,
    continue_partial,
    make_sequence,
    segments_from_versions,
)
from drumroll_rollout.engine import SamplingSettings
from drumroll_rollout.transcript import BadSample, Transcript


@dataclass(frozen=True, slots=True)
class PayloadMaker:
    """What all payloads of a replica have in common."""

    replica: str
    instance: str
    tokenizer_digest: str
    max_response_tokens: int
    lineage: Callable[[int], int]
    """Lineage of a version that was loaded here."""
    limits: Limits

    def make(self, draft: "Draft", transcript: Transcript) -> SamplePayload | None:
        """The payload of all tokens made so far, here and before; None if there are none.

        Raises:
            BadSample: the parts do not fit together, or a value is not allowed.
        """
        try:
            payload = self._own_part(draft, transcript) if len(transcript) else None
            if draft.earlier is not None:
                payload = self._joined(draft, draft.earlier, payload)
            if payload is not None:
                check_payload(payload, self.limits)
        except CorruptError as error:
            raise BadSample(str(error)) from error
        return payload

    def _own_part(self, draft: "Draft", transcript: Transcript) -> SamplePayload:
        finish = FinishReason(transcript.finish_reason or "drained")
        sequence = make_sequence(
            prompt_ids=draft.prompt_ids,
            completion_ids=transcript.token_ids,
            logprobs=transcript.logprobs,
            segments=segments_from_versions(
                transcript.versions,
                replica=self.replica,
                instance=self.instance,
                lineage={version: self.lineage(version) for version in set(transcript.versions)},
            ),
            finish_reason=finish,
            reward=draft.reward,
            reward_parts=draft.reward_parts,
        )
        return SamplePayload(
            sequences=(sequence,),
            sampling=as_applied(draft.sampling, max_tokens=self.max_response_tokens),
            row=draft.row,
            tokenizer_digest=self.tokenizer_digest,
            planned_tokens=draft.planned_tokens,
            actual_tokens=sequence.num_completion_tokens,
            started_at=draft.started_at,
            finished_at=draft.finished_at,
        )

    def _joined(self, draft: "Draft", earlier: SamplePayload, payload: SamplePayload | None) -> SamplePayload:
        if payload is not None:
            return continue_partial(earlier, payload)
        sequence = replace(earlier.sequences[0], reward=draft.reward, reward_parts=dict(draft.reward_parts))
        return replace(earlier, sequences=(sequence,), finished_at=draft.finished_at)


@dataclass(slots=True)
class Draft:
    """What is known of a sample beside its new tokens."""

    row: int
    prompt_ids: Sequence[int]
    sampling: SamplingSettings
    planned_tokens: int
    started_at: float
    earlier: SamplePayload | None = None
    """The part that was made before, by this or another replica."""
    finished_at: float = 0.0
    reward: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def earlier_ids(self) -> tuple[int, ...]:
        """Completion tokens made before."""
        return () if self.earlier is None else tuple(self.earlier.sequences[0].completion_ids.tolist())

    @property
    def earlier_finish(self) -> FinishReason:
        """`drained` unless the earlier part is a whole answer that only lacks its reward."""
        return FinishReason.DRAINED if self.earlier is None else self.earlier.sequences[0].finish_reason


def as_applied(settings: SamplingSettings, *, max_tokens: int) -> Sampling:
    """The record of the sampling parameters; `max_tokens` of the whole completion."""
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        repetition_penalty=settings.repetition_penalty,
        max_tokens=max_tokens,
        stop_token_ids=settings.stop_token_ids,
        stop_strings=settings.stop_strings,
    )
