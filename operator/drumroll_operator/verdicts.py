"""Why a pod ended, and who pays: disruptions and fenced processes are free, failures are charged, users' errors end the
job. Each ended pod is judged by what its object says alone, so that everybody comes to the same verdict."""

from dataclasses import dataclass
from enum import StrEnum

from drumroll.errors import EXIT_FENCED, EXIT_USER
from drumroll_operator import reasons
from drumroll_operator.observed import PodPhase, PodView
from drumroll_operator.texts import last_words


class Cause(StrEnum):
    """Who pays for an end."""

    DONE = "done"
    DISRUPTION = "disruption"
    FENCED = "fenced"
    USER = "user"
    CHARGED = "charged"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a pod ended."""

    cause: Cause
    reason: str
    message: str

    @property
    def free(self) -> bool:
        """Not charged to the restart budget."""
        return self.cause in (Cause.DISRUPTION, Cause.FENCED)


_DISRUPTIONS = {
    "PreemptionByScheduler": reasons.PREEMPTED,
    "PreemptionByKubeScheduler": reasons.PREEMPTED,
    "DeletionByTaintManager": reasons.NODE_LOST,
    "DeletionByPodGC": reasons.NODE_LOST,
    "EvictionByEvictionAPI": reasons.EVICTED,
    "TerminationByKubelet": reasons.EVICTED,
}
_POD_REASONS = {
    "Evicted": reasons.EVICTED,
    "Preempting": reasons.PREEMPTED,
    "Preempted": reasons.PREEMPTED,
    "NodeLost": reasons.NODE_LOST,
    "NodeShutdown": reasons.NODE_SHUTDOWN,
    "Shutdown": reasons.NODE_SHUTDOWN,
    "Terminated": reasons.NODE_SHUTDOWN,
    "UnexpectedAdmissionError": reasons.REFUSED_BY_NODE,
    "NodeAffinity": reasons.REFUSED_BY_NODE,
    "NodeSelectorMismatching": reasons.REFUSED_BY_NODE,
    "TopologyAffinityError": reasons.REFUSED_BY_NODE,
}


def verdict(pod: PodView) -> Verdict:
    """Judge a pod that has ended."""
    disruption = _disruption(pod)
    if disruption is not None:
        why = last_words(pod.disruption_message or pod.message)
        return Verdict(Cause.DISRUPTION, disruption, f"{pod.name}: {_phrase(disruption)}" + (f": {why}" if why else ""))
    if pod.phase is PodPhase.SUCCEEDED:
        return Verdict(Cause.DONE, reasons.ENDED_EARLY, f"{pod.name} ended without an error before the job did")
    return _failure(pod)


def _disruption(pod: PodView) -> str | None:
    known = _POD_REASONS.get(pod.reason)
    if known is None and pod.reason.startswith("OutOf"):
        known = reasons.REFUSED_BY_NODE
    if known is None and pod.disruption:
        known = _DISRUPTIONS.get(pod.disruption, reasons.EVICTED)
    return known


def _phrase(reason: str) -> str:
    return {
        reasons.PREEMPTED: "preempted",
        reasons.NODE_LOST: "its node is lost",
        reasons.NODE_SHUTDOWN: "its node was shut down",
        reasons.REFUSED_BY_NODE: "the node did not take it",
    }.get(reason, "evicted")


def _failure(pod: PodView) -> Verdict:
    end = pod.exit
    if end is None:
        said = last_words(pod.message) or pod.reason or "no reason is given"
        return Verdict(Cause.CHARGED, reasons.PROCESS_FAILED, f"{pod.name} failed: {said}")
    said = last_words(end.message)
    if end.reason == "OOMKilled":
        limit = f"its memory limit of {pod.memory_limit}" if pod.memory_limit else "the node's memory"
        remedy = f"; raise spec.{pod.role}.resources.limits.memory" if pod.memory_limit and pod.role != "store" else ""
        return Verdict(Cause.CHARGED, reasons.OOM_KILLED, f"{pod.name} went over {limit}{remedy}")
    if end.code == EXIT_FENCED:
        return Verdict(Cause.FENCED, reasons.FENCED, f"{pod.name} found a successor and ended")
    if end.code == EXIT_USER:
        return Verdict(Cause.USER, reasons.USER_ERROR, f"{pod.name}: {said or 'exit code 2 without a word'}")
    told = f": {said}" if said else ""
    if end.code > 128:
        return Verdict(Cause.CHARGED, reasons.KILLED, f"{pod.name} was killed by signal {end.code - 128}{told}")
    return Verdict(Cause.CHARGED, reasons.PROCESS_FAILED, f"{pod.name} ended with exit code {end.code}{told}")
