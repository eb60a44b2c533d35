"""Between the wire and the policy's types."""

import pytest
from drumroll_planner import policy as p
from drumroll_planner import records as r
from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_scheduler import translate
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import ProtocolError

SHA = bytes(32)


def report(**changes: object) -> pb.SampleReport:
    message = pb.SampleReport(
        lease_id="1-1",
        sample=common_pb2.SampleId(ticket=common_pb2.TicketId(epoch=1, ordinal=2), index=3, attempt=1),
        entry=common_pb2.EntryRef(entry_id="17-0", sha256=SHA, num_bytes=9),
        oldest_version=4,
        newest_version=5,
        num_tokens=6,
        reward=0.5,
        finished=True,
    )
    message.MergeFrom(pb.SampleReport(**changes))  # type: ignore[arg-type]
    return message


def test_a_report_arrives_as_it_was_sent() -> None:
    assert translate.sample_report(report()) == p.SampleReport(
        "1-1", r.TicketId(1, 2), 3, 1, "17-0", SHA, 9, 4, 5, 6, 0.5, True
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"entry": common_pb2.EntryRef(entry_id="newest")}, "samples.entry.entry_id is 'newest'"),
        ({"entry": common_pb2.EntryRef(sha256=b"short")}, "samples.entry.sha256 has 5 bytes"),
        ({"reward": float("nan")}, "samples.reward is nan"),
        ({"oldest_version": 6}, "oldest_version 6 is above newest_version 5"),
    ],
)
def test_a_report_that_cannot_be_is_refused_by_its_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        translate.sample_report(report(**changes))


@given(reason=st.sampled_from(list(r.ReturnReason)))
def test_every_reason_of_a_hand_back_is_known(reason: r.ReturnReason) -> None:
    value = journal_pb2.ReturnReason.Value(f"RETURN_REASON_{reason.name}")
    assert translate.handed_back(pb.HandedBack(lease_id="1-1", reason=value)).reason is reason


def test_a_partial_is_taken_over_and_checked() -> None:
    partial = journal_pb2.PartialRef(entry_id="5-1", sha256=SHA, num_bytes=7, num_tokens=3, oldest_version=2)
    message = pb.HandedBack(lease_id="1-1", reason=journal_pb2.RETURN_REASON_DRAINED, partial=partial, detail="why")
    expected = p.HandedBack("1-1", r.ReturnReason.DRAINED, r.PartialRef("5-1", SHA, 7, 3, 2), "why")
    assert translate.handed_back(message) == expected
    message.partial.entry_id = "x"
    with pytest.raises(ProtocolError, match=r"samples\.partial\.entry_id"):
        translate.handed_back(message)
    with pytest.raises(ProtocolError, match=r"samples\.reason has the unknown value 0"):
        translate.handed_back(pb.HandedBack(lease_id="1-1"))


def test_a_lease_carries_its_partial() -> None:
    partial = r.PartialRef("5-1", SHA, 7, 3, 2)
    grant = p.LeaseGrant("1-1", r.LeaseKind.TRAIN, r.TicketId(0, 4), 9, 1, 2, 3, partial, 50)
    message = translate.lease_grant(grant)
    assert (message.kind, message.task, message.row, message.version) == (common_pb2.LEASE_KIND_TRAIN, "train", 9, 3)
    assert message.samples[0] == pb.SampleSlot(
        index=1, attempt=2, partial=common_pb2.EntryRef(entry_id="5-1", sha256=SHA, num_bytes=7)
    )
    assert not message.constraint.exactly


def test_an_evaluation_lease_holds_its_version_until_a_moment() -> None:
    grant = p.LeaseGrant("eval-1-1", r.LeaseKind.EVAL, r.TicketId(3, 4), 4, 1, 0, 3, None, 0, held_until=1700.5)
    message = translate.lease_grant(grant)
    assert (message.kind, message.task, message.row) == (common_pb2.LEASE_KIND_EVAL, "eval", 4)
    assert message.constraint == pb.VersionConstraint(exactly=True, version=3, until=1700.5)


def test_a_rewind_is_sent_with_its_version_and_lineage() -> None:
    rewound = r.Rewound(step=2, version=9, lineage=1, reason="lost")
    reply = translate.step_answer(p.StepAnswer("rewind", rewind=rewound, reason="lost"))
    assert reply.outcome == pb.NEXT_STEP_OUTCOME_REWIND
    assert (reply.rewind.step, reply.rewind.version, reply.rewind.lineage) == (2, 9, 1)


def test_a_divergence_is_absent_or_taken_over() -> None:
    assert translate.diverged(pb.AnnounceRequest()) is None
    message = pb.AnnounceRequest(diverged=journal_pb2.ReplayDiverged(version=3, expected="a", actual="b"))
    assert translate.diverged(message) == r.ReplayDiverged(3, "a", "b")


def test_a_role_must_be_known() -> None:
    with pytest.raises(ProtocolError, match="role has the unknown value 0"):
        translate.role(pb.RegisterRequest())
