"""What must hold at every write that the API server sees, whatever the order of events: checked on its history.

One trainer set at most; charges once and before the pod goes; nothing is made after the end; no figure goes back.
"""

from drumroll_operator.cluster import Raw
from drumroll_operator.laboratory import Laboratory
from drumroll_operator.pod_view import pod_view
from drumroll_operator.verdicts import Cause, verdict

ENDS = ("Complete", "Failed")


class Invariants:
    """Reads the API server's history and objects to what must never be."""

    def __init__(self, lab: Laboratory) -> None:
        self.lab = lab
        self.read = 0
        self.jobs: dict[str, Raw] = {}
        self.pods: dict[str, Raw] = {}
        self.ended: set[str] = set()
        self.charged: set[str] = set()
        self.deleted_by_hand: set[str] = set()

    def check(self) -> None:
        """Go on to the newest change."""
        for happening in self.lab.api.history[self.read :]:
            raw = happening.object
            if raw["kind"] == "RLJob":
                self._job(happening.type, raw)
            elif raw["kind"] == "Pod":
                self._pod(happening.type, raw)
        self.read = len(self.lab.api.history)

    def _job(self, type_: str, raw: Raw) -> None:
        uid = raw["metadata"]["uid"]
        if type_ == "DELETED":
            self.jobs.pop(uid, None)
            return
        before = self.jobs.get(uid, {}).get("status") or {}
        now = raw.get("status") or {}
        self.jobs[uid] = raw
        for figure in ("step", "version", "samples", "suspendedSeconds"):
            assert now.get(figure, 0) >= before.get(figure, 0), f"{figure} went back"
        assert now.get("trainer", {}).get("setNumber", 0) >= before.get("trainer", {}).get("setNumber", 0)
        if before.get("phase") in ENDS:
            assert now["phase"] == before["phase"], "an end was taken back"
            assert now["endTime"] == before["endTime"]
        self._conditions(before, now)
        self._charges(before, now)

    def _conditions(self, before: Raw, now: Raw) -> None:
        old = {c["type"]: c for c in before.get("conditions", [])}
        new = {c["type"]: c for c in now.get("conditions", [])}
        for type_, condition in new.items():
            if type_ in old and old[type_]["status"] == condition["status"]:
                assert old[type_]["lastTransitionTime"] == condition["lastTransitionTime"]
        if now.get("phase") in ENDS:
            assert [new[end]["status"] for end in ENDS].count("True") == 1

    def _charges(self, before: Raw, now: Raw) -> None:
        old = {entry["role"]: entry for entry in before.get("restarts", [])}
        for entry in now.get("restarts", []):
            known = old.get(entry["role"], {"count": 0, "chargedUids": []})
            new = set(entry["chargedUids"]) - set(known["chargedUids"])
            assert entry["count"] - known["count"] == len(new), "charges are counted by uid"
            assert not new & self.charged, "charged twice"
            assert new <= self.ended, "charged before its end"
            self.charged |= new

    def _pod(self, type_: str, raw: Raw) -> None:
        uid, view = raw["metadata"]["uid"], pod_view(raw)
        job = self.jobs.get(view.job_uid)
        if view.ended:
            self.ended.add(uid)
        if type_ == "ADDED":
            # One that was made before the job's deletion was heard of is garbage, which the cluster collects.
            assert job is None or (job.get("status") or {}).get("phase") not in ENDS, "made after the end"
            if view.role == "trainer":
                self._one_set(view.job_uid, view.set_number)
        if type_ == "DELETED":
            self._paid(raw, job)
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = raw

    def _one_set(self, job_uid: str, number: int) -> None:
        for other in map(pod_view, self.pods.values()):
            if other.role == "trainer" and other.job_uid == job_uid:
                assert other.set_number == number or other.ended, "two trainer sets"

    def _paid(self, raw: Raw, job: Raw | None) -> None:
        """A failure of a single part or a replica is charged before its object goes, while the job runs."""
        view = pod_view(raw)
        if job is None or raw["metadata"]["uid"] in self.deleted_by_hand or not view.ended or view.role == "trainer":
            return
        status = job.get("status") or {}
        over = self.lab.ledger(view.job_uid).phase != "Running"
        if status.get("phase") in (*ENDS, "Suspended") or job["spec"].get("suspend") or over or view.deleting:
            return
        if verdict(view).cause is Cause.CHARGED:
            assert view.uid in self.charged, f"{view.name} went without being charged"
