"""Requests of the scheduler's protocol, written by hand: for tests and benches that make single calls."""

from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.entries import EntryRef
from drumroll.rpc import PROTOCOL_VERSION
from drumroll.samples import SampleId


def header(request_id: str) -> common_pb2.CallHeader:
    """A header with an id of its own choice; the client fills in the rest."""
    return common_pb2.CallHeader(request_id=request_id)


def register_replica(replica: common_pb2.ReplicaId, request_id: str, *, slots: int = 4) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        header=header(request_id),
        role=pb.ROLE_ROLLOUT,
        min_protocol=PROTOCOL_VERSION,
        max_protocol=PROTOCOL_VERSION,
        replica=replica,
        slots=slots,
    )


def register_trainer(request_id: str) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        header=header(request_id),
        role=pb.ROLE_TRAINER,
        min_protocol=PROTOCOL_VERSION,
        max_protocol=PROTOCOL_VERSION,
        instance="trainer",
    )


def announce(epoch: int, version: int) -> pb.AnnounceRequest:
    weights = journal_pb2.Announced(version=version, step=version, manifest_sha256=f"m{version}", weights_digest="w")
    return pb.AnnounceRequest(header=header(f"announce-{version}"), trainer_epoch=epoch, weights=weights)


def attest(replica: common_pb2.ReplicaId, version: int) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(replica=replica, attested=True, attested_version=version)


def sample_of(grant: pb.LeaseGrant) -> SampleId:
    """The sample of a lease, as the stream names it."""
    slot = grant.samples[0]
    return SampleId(grant.ticket.epoch, grant.ticket.ordinal, slot.index, slot.attempt)


def wire_sample(grant: pb.LeaseGrant) -> common_pb2.SampleId:
    """The sample of a lease, as calls name it."""
    slot = grant.samples[0]
    return common_pb2.SampleId(ticket=grant.ticket, index=slot.index, attempt=slot.attempt)


def report_of(grant: pb.LeaseGrant, ref: EntryRef, *, num_tokens: int = 3, reward: float = 1.0) -> pb.SampleReport:
    """The report of an answer that was made wholly under the lease's version."""
    return pb.SampleReport(
        lease_id=grant.lease_id,
        sample=wire_sample(grant),
        entry=ref.to_proto(),
        oldest_version=grant.version,
        newest_version=grant.version,
        num_tokens=num_tokens,
        reward=reward,
        finished=True,
    )
