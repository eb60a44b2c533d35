"""Every reason that a condition or an Event of a job may name, with what it means and what to do: the contract's words.

A reason is one CamelCase word for programs. None is ever given another meaning; new ones may come.
"""

from collections.abc import Mapping

_TEXTS: dict[str, str] = {}


def _reason(name: str, text: str) -> str:
    _TEXTS[name] = text
    return name


def documented() -> Mapping[str, str]:
    """All reasons with their sentences, in the order of this module."""
    return dict(_TEXTS)


# -- the job's file ------------------------------------------------------------------------------------------------
ACCEPTED = _reason("Accepted", "The job can be run as it is written.")
INVALID_SPEC = _reason(
    "InvalidSpec", "The job contradicts itself or this operator's settings; the message names the field."
)
NO_VOLUME = _reason(
    "NoVolume",
    "Neither spec.weights.volume names a claim nor does the operator have a default one: weights have nowhere to go.",
)

# -- what the API server said --------------------------------------------------------------------------------------
ADMITTED = _reason("Admitted", "The API server took all objects that the job wants.")
CREATING = _reason("Creating", "Objects are being created.")
QUOTA_EXCEEDED = _reason(
    "QuotaExceeded", "A ResourceQuota leaves no room for a pod. It is tried again; raise the quota or ask for less."
)
MISSING_RIGHTS = _reason(
    "MissingRights", "The operator's Role lacks the verb on the resource that the message names. Upgrade the chart."
)
ADMISSION_DENIED = _reason(
    "AdmissionDenied", "Pod Security, a policy, a limit range or a webhook refuses an object; the message is its own."
)
INVALID_OBJECT = _reason(
    "InvalidObject", "The API server finds an object invalid; mostly a podTemplatePatch is the cause."
)
NAME_TAKEN = _reason(
    "NameTaken", "An object of another owner has the name of one of the job's. It is waited for until the name is free."
)
NAMESPACE_TERMINATING = _reason("NamespaceTerminating", "The namespace is being deleted: nothing is created in it.")
API_UNAVAILABLE = _reason(
    "ApiUnavailable", "The API server did not do what was asked, or not in time. It is tried again."
)
LIVE_VALUE_REFUSED = _reason(
    "LiveValueRefused", "The scheduler refuses a value that was changed while the job runs; the message says why."
)

# -- parts that run, or do not yet ---------------------------------------------------------------------------------
PODS_READY = _reason("PodsReady", "The pods of this part run and say that they are ready.")
EXTERNAL = _reason("External", "The store is not the job's own: the operator does not watch it.")
STORE_UNAVAILABLE = _reason(
    "StoreUnavailable",
    "The store does not take what the scheduler writes: it fails over, restarts or is out of reach. All work waits for "
    "it, and nothing is lost.",
)
NOT_CREATED = _reason("NotCreated", "The pod does not exist yet.")
WAITING_FOR_TRAINER = _reason(
    "WaitingForTrainer",
    "Replicas are made once all trainer pods have a node, so that they never hold GPUs it waits for.",
)
SCHEDULING = _reason("Scheduling", "The pod exists and has no node yet.")
UNSCHEDULABLE = _reason("Unschedulable", "No node fits the pod; the message is the Kubernetes scheduler's.")
CONTAINER_CREATING = _reason("ContainerCreating", "The pod has a node, which prepares its volumes, network and image.")
STUCK_CREATING = _reason(
    "StuckCreating",
    "The node prepares the pod for longer than usual: a volume, a Secret or the network is missing. "
    "`kubectl describe pod` names it.",
)
PREPARING_DATA = _reason("PreparingData", "The scheduler's init container reads, checks and tokenises the data set.")
IMAGE_PULL_BACK_OFF = _reason(
    "ImagePullBackOff", "An image cannot be pulled: check its name, its registry and imagePullSecrets."
)
CREATE_CONTAINER_CONFIG_ERROR = _reason(
    "CreateContainerConfigError", "A container refers to a Secret, a ConfigMap or a key that does not exist."
)
CREATE_CONTAINER_ERROR = _reason(
    "CreateContainerError", "The node cannot make or start a container; the message is its own."
)
CRASH_LOOP_BACK_OFF = _reason("CrashLoopBackOff", "The kubelet waits before it starts a container again.")
STARTING = _reason("Starting", "The process runs and is not ready yet: it loads a model, replays or connects.")
TERMINATING = _reason("Terminating", "The pod is being deleted and has its grace to finish.")
NODE_LOST = _reason(
    "NodeLost",
    "The pod's node does not answer. Pods are replaced by force; the store's never is, lest two write to one volume: "
    "bring the node back, or delete the pod by force once the node is surely off.",
)
SCHEDULER_SILENT = _reason("SchedulerSilent", "The scheduler pod is ready but does not answer the operator.")
TRAINER_NOT_REGISTERED = _reason(
    "TrainerNotRegistered", "The trainer runs and has not registered at the scheduler yet."
)
TRAINING_DONE = _reason("TrainingDone", "The last step is trained and the trainer has ended as it should.")
TOO_FEW_REPLICAS = _reason("TooFewReplicas", "Fewer than minReplicas replicas are ready.")
FEWER_REPLICAS = _reason("FewerReplicas", "Fewer replicas are ready than the job asks for.")

# -- how pods end --------------------------------------------------------------------------------------------------
EVICTED = _reason(
    "Evicted", "A pod was evicted, by a drain or for lack of a node's resources. Not charged to the budget."
)
PREEMPTED = _reason("Preempted", "A pod made room for one of higher priority. Not charged to the budget.")
NODE_SHUTDOWN = _reason("NodeShutdown", "A pod's node was shut down. Not charged to the budget.")
REFUSED_BY_NODE = _reason(
    "RefusedByNode",
    "The node did not take the pod, as its devices or resources had changed. Not charged to the budget.",
)
POD_DELETED = _reason("PodDeleted", "Someone deleted a pod; it is replaced. Not charged to the budget.")
FENCED = _reason("Fenced", "A process found a successor and ended. Not charged to the budget.")
OOM_KILLED = _reason(
    "OOMKilled", "A process went over its memory limit, which the message names. Charged to the budget."
)
KILLED = _reason("Killed", "A process was killed by a signal. Charged to the budget.")
PROCESS_FAILED = _reason("ProcessFailed", "A process ended with an error; the message holds its last words. Charged.")
ENDED_EARLY = _reason("EndedEarly", "A process ended without an error before the job did. Charged to the budget.")
USER_ERROR = _reason(
    "UserError", "The job's own files or code are wrong (exit code 2); the message is the process's own."
)

# -- weights, progress, suspension ---------------------------------------------------------------------------------
IN_SYNC = _reason("InSync", "All ready replicas hold weights within the bound.")
NOT_PUBLISHED = _reason("NotPublished", "The trainer has not published the first weights yet.")
REPLICAS_BEHIND = _reason("ReplicasBehind", "A ready replica holds weights older than the bound allows.")
NOT_KNOWN = _reason("NotKnown", "The scheduler has not been heard yet.")
READY = _reason("Ready", "All parts are ready.")
STEPPING = _reason("Stepping", "Steps or samples were made lately.")
STALLED = _reason("Stalled", "Neither a step nor a sample was made for a while.")
FINISHING = _reason("Finishing", "All steps are done; the scheduler evaluates the last weights and archives.")
SUSPENDED = _reason("Suspended", "spec.suspend is true and the pods are gone, but for the store.")
SUSPENDING = _reason("Suspending", "spec.suspend is true; pods drain, write a checkpoint and go.")
RESUMED = _reason("Resumed", "The job was suspended and goes on from its last checkpoint.")
NOT_SUSPENDED = _reason("NotSuspended", "The job has not been suspended.")
AS_WANTED = _reason("AsWanted", "Nothing is wrong.")

# -- the end -------------------------------------------------------------------------------------------------------
NOT_ENDED = _reason("NotEnded", "The job has not ended.")
JOB_ENDED = _reason("JobEnded", "The job has ended; Complete or Failed says how.")
STEPS_DONE = _reason("StepsDone", "All steps are trained, published and archived.")
TRAINING_FAILED = _reason("TrainingFailed", "The scheduler ended the job; the message is its reason.")
BACKOFF_LIMIT_EXCEEDED = _reason(
    "BackoffLimitExceeded", "A role failed more often within the window than its restartPolicy allows."
)
PENDING_DEADLINE_EXCEEDED = _reason("PendingDeadlineExceeded", "The job was not ready within pendingDeadlineSeconds.")
ACTIVE_DEADLINE_EXCEEDED = _reason("ActiveDeadlineExceeded", "The job ran longer than activeDeadlineSeconds.")
STALL_DEADLINE_EXCEEDED = _reason("StallDeadlineExceeded", "No step and no sample within stallDeadlineSeconds.")

# -- Events alone --------------------------------------------------------------------------------------------------
SCALED_UP = _reason("ScaledUp", "Replicas are being added.")
SCALED_DOWN = _reason("ScaledDown", "The replicas that the message names drain and go.")
TRAINER_REPLACED = _reason(
    "TrainerReplaced", "A trainer pod is gone or has ended: all trainer pods are replaced together."
)
FORCE_DELETED = _reason("ForceDeleted", "A pod was still there long after its grace and was deleted by force.")
