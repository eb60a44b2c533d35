"""From a decision and its samples' payloads to the arrays that are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from drumroll_planner import records as r

from drumroll.errors import CorruptError
from drumroll.samples import FinishReason, Limits, LogprobKind, SamplePayload, decode
from drumroll.samples import Sequence as SampleSequence
from drumroll_trainer.decisions import sample_keys
from drumroll_trainer.sequences import StepSequences, TrainSequence


@dataclass(frozen=True, slots=True, eq=False)
class DecodedStep:
    """What came out of a step's payloads."""

    sequences: StepSequences
    faults: tuple[tuple[int, str], ...]
    """Place in the decision and reason, of each payload that is not what it must be. Any fault: do not train."""


def decode_step(decision: r.Decided, payloads: Sequence[bytes], limits: Limits) -> DecodedStep:
    """Decode the payloads of `sample_keys(decision)`, in that order."""
    groups = [place for place, ticket in enumerate(decision.tickets) for _ in ticket.samples]
    sequences: list[TrainSequence] = []
    faults: list[tuple[int, str]] = []
    for place, (group, data) in enumerate(zip(groups, payloads, strict=True)):
        try:
            payload = decode(data, limits)
            sequences.extend(_train_sequence(payload, part, group, place) for part in payload.sequences)
        except CorruptError as error:
            faults.append((place, str(error)))
    return DecodedStep(StepSequences(tuple(sequences), decision.version, decision.mask_below), tuple(faults))


def place_name(decision: r.Decided, place: int) -> str:
    """Name of a sample for people."""
    ticket, sample = sample_keys(decision)[place]
    return f"{ticket.epoch}/{ticket.ordinal}#{sample.index} (entry {sample.entry_id})"


def _train_sequence(payload: SamplePayload, sequence: SampleSequence, group: int, place: int) -> TrainSequence:
    temperature = payload.sampling.temperature
    if sequence.logprob_kind is LogprobKind.RAW and temperature != 1.0:
        raise CorruptError(
            f"raw log-probabilities at temperature {temperature:g} say nothing of the distribution sampled from"
        )
    versions = np.zeros(sequence.num_completion_tokens, dtype=np.int64)
    for segment in sequence.segments:
        versions[segment.start : segment.end] = segment.version
    return TrainSequence(
        group=group,
        sample=place,
        prompt_length=sequence.prompt_length,
        token_ids=sequence.token_ids,
        loss_mask=sequence.loss_mask.astype(np.bool_),
        logprobs=sequence.logprobs,
        versions=versions,
        temperature=temperature,
        # An episode's reward is that of its last sequence, for all its sequences.
        reward=payload.reward,
        finished=sequence.finish_reason is not FinishReason.LENGTH,
    )
