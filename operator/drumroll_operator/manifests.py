"""A job's pods, as pure functions of (job, substrate): the same argv and environment on a laptop and on a cluster.

Commands hold no absolute path but those of job.json's own layout, and no fixed port: only the scheduler and the store
have known addresses, and those come from job.json as well. Nothing here reads a clock, a file or the network.
"""

from collections.abc import Mapping
from typing import Any, Literal

from drumroll.api.pods import ResourceRequirements
from drumroll.api.quantity import parse_quantity
from drumroll.api.spec import EnvVar
from drumroll.endpoint import Endpoint
from drumroll.job import ResolvedJob
from drumroll.valkey import server_command, settings_of
from drumroll_operator.labels import INDEX, JOB, ROLE, UID, part_name, pod_name
from drumroll_operator.substrate import Role, Substrate

GPU = "nvidia.com/gpu"
STORE_GRACE_S = 30
SCHEDULER_GRACE_S = 30
TRAINER_GRACE_S = 120
TRAINER_PORT = 29500
"""Where the ranks of several trainer pods meet."""

Manifest = dict[str, Any]


def render_pods(job: ResolvedJob, substrate: Substrate) -> list[Manifest]:
    """All pods of the job, in the order in which they are best started."""
    pods = [] if job.spec.stream.url else [render_pod(job, substrate, "store")]
    pods += [render_pod(job, substrate, "scheduler")]
    pods += [render_pod(job, substrate, "trainer", index) for index in range(job.spec.trainer.replicas)]
    pods += [render_pod(job, substrate, "rollout", index) for index in range(job.spec.rollout.replicas)]
    return pods


def render_pod(job: ResolvedJob, substrate: Substrate, role: Role, index: int = 0) -> Manifest:
    """One pod."""
    match role:
        case "store":
            return _store_pod(job, substrate)
        case "scheduler":
            return _scheduler_pod(job, substrate)
        case "trainer":
            return _trainer_pod(job, substrate, index)
        case "rollout":
            return _rollout_pod(job, substrate, index)


def _store_pod(job: ResolvedJob, substrate: Substrate) -> Manifest:
    """The embedded Valkey: sample stream and ledger."""
    command = [part for part in server_command(settings_of(job)) if not part.startswith("--bind=")]
    probe = {"exec": {"command": ping_command(job)}} | _times() if substrate.probes == "command" else None
    container = {"command": [*command, f"--bind={substrate.store_bind}"], "livenessProbe": probe}
    return _pod(job, substrate, "store", 0, container, grace_s=STORE_GRACE_S, restart="Always")


def ping_command(job: ResolvedJob) -> list[str]:
    """Asks the store for an answer, as the scheduler's user, from where it runs."""
    endpoint = Endpoint.parse(job.endpoints.store)
    password_file = job.secrets.store_password_files["scheduler"]
    command = ["python", "-m", "drumroll.ping", f"--port={endpoint.port}", f"--password-file={password_file}"]
    return [*command, f"--ca={job.secrets.store_ca_file}"] if endpoint.tls else command


def _scheduler_pod(job: ResolvedJob, substrate: Substrate) -> Manifest:
    """The scheduler; its init container prepares the data set where nobody has done so yet."""
    container = {
        "command": ["python", "-m", "drumroll_scheduler"],
        "resources": job.spec.scheduler.resources.to_wire(),
        "livenessProbe": _probe(substrate, "scheduler"),
    }
    pod = _pod(job, substrate, "scheduler", 0, container, grace_s=SCHEDULER_GRACE_S, env=job.spec.scheduler.env)
    main = pod["spec"]["containers"][0]
    pod["spec"]["initContainers"] = [
        {**{key: main[key] for key in main if key in ("image", "env", "volumeMounts", "resources")}}
        | {"name": "prepare-data", "command": ["python", "-m", "drumroll.data"]}
    ]
    return pod


def _rollout_pod(job: ResolvedJob, substrate: Substrate, index: int) -> Manifest:
    """One replica."""
    rollout = job.spec.rollout
    container = {
        "command": ["python", "-m", "drumroll_rollout"],
        "resources": rollout.resources.to_wire(),
        "livenessProbe": _probe(substrate, "rollout", period_s=30, initial_delay_s=600),
    }
    return _pod(job, substrate, "rollout", index, container, grace_s=rollout.grace_seconds, env=rollout.env)


def _trainer_pod(job: ResolvedJob, substrate: Substrate, index: int) -> Manifest:
    """One pod of the trainer; several processes, or several pods, meet through torchrun."""
    processes = trainer_processes(job)
    pods = job.spec.trainer.replicas
    command = ["python", "-m", "drumroll_trainer"]
    if processes > 1 or pods > 1:
        meeting = ["--standalone"] if pods == 1 else [f"--nnodes={pods}", f"--node-rank={index}", *_rendezvous(job)]
        ranks = [*meeting, f"--nproc-per-node={processes}", "-m", "drumroll_trainer"]
        command = ["python", "-m", "drumroll_trainer.learner.launch", *ranks]
    container = {"command": command, "resources": job.spec.trainer.resources.to_wire()}
    return _pod(job, substrate, "trainer", index, container, grace_s=TRAINER_GRACE_S, env=job.spec.trainer.env)


def trainer_processes(job: ResolvedJob) -> int:
    """Processes of one trainer pod: as asked, or one per GPU, or one."""
    return job.spec.trainer.processes_per_replica or max(1, gpu_count(job.spec.trainer.resources.limits))


def gpu_count(limits: Mapping[str, Any]) -> int:
    """GPUs that a pod is given."""
    return int(limits.get(GPU, 0))


def threads_per_process(job: ResolvedJob, cores: int | None) -> int | None:
    """OpenMP threads where cores are shared: cores by computing processes; None: the library's own."""
    if cores is None:
        return None
    computing = job.spec.rollout.replicas + job.spec.trainer.replicas * trainer_processes(job)
    return max(1, cores // computing)


def own_threads(job: ResolvedJob, role: Literal["rollout", "trainer"]) -> int | None:
    """OpenMP threads of a process in a pod with cores of its own: those that it is given, by its processes; libraries
    would count the node's. None: it asks for none."""
    resources: ResourceRequirements = getattr(job.spec, role).resources
    cores = resources.limits.get("cpu") or resources.requests.get("cpu")
    if cores is None:
        return None
    processes = trainer_processes(job) if role == "trainer" else 1
    return max(1, int(parse_quantity(cores)) // processes)


def _rendezvous(job: ResolvedJob) -> list[str]:
    """Pod 0 is the meeting point and holds rank 0; its name comes from the headless Service of the trainer."""
    return [f"--master-addr={pod_name(job.name, 'trainer', 0)}.{job.name}-trainer", f"--master-port={TRAINER_PORT}"]


def _pod(
    job: ResolvedJob,
    substrate: Substrate,
    role: Role,
    index: int,
    container: Mapping[str, Any],
    *,
    grace_s: int,
    env: list[EnvVar] | None = None,
    restart: str = "OnFailure",
) -> Manifest:
    """A pod of one container named after its role."""
    mounts = [mount for mount in substrate.mounts if role in mount.roles]
    image = substrate.images.get(role)
    main = {
        "name": role,
        **({"image": image} if image else {}),
        "env": _environment(job, substrate, role, index, env or []),
        "volumeMounts": [
            {"name": m.name, "mountPath": m.path, **({"readOnly": True} if m.read_only else {})} for m in mounts
        ],
        **{key: value for key, value in container.items() if value},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job.name, role, index),
            "namespace": job.namespace,
            "labels": {JOB: job.name, UID: job.uid, ROLE: role, INDEX: str(index)},
        },
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": grace_s,
            "volumes": [{"name": mount.name, **mount.source} for mount in mounts],
            "containers": [main],
        },
    }


def _environment(
    job: ResolvedJob, substrate: Substrate, role: Role, index: int, role_env: list[EnvVar]
) -> list[dict[str, Any]]:
    """Identity, the switches that libraries read from the environment, the job's own. Each name once; later ones win.

    References to Secrets stay references: nothing resolves them here.
    """
    values = {"DRUMROLL_JOB": substrate.job_file, "DRUMROLL_ROLE": role, "DRUMROLL_REPLICA": part_name(role, index)}
    # Nothing here calls gRPC in a forked child; the library's fork handlers only write to the log.
    values["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    if role in ("rollout", "trainer"):
        threads = getattr(job.spec, role).threads or (
            own_threads(job, role) if substrate.cores is None else threads_per_process(job, substrate.cores)
        )
        # Spinning OpenMP threads cost 4 to 10 times where cores are shared.
        values |= {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        values |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    if role == "rollout":
        values |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    ours = {name: {"name": name, "value": value} for name, value in {**values, **substrate.variables}.items()}
    theirs = {variable.name: variable.to_wire() for variable in [*job.spec.env, *role_env]}
    return [*(ours | theirs).values()]


def _probe(
    substrate: Substrate, target: str, *, period_s: int = 20, initial_delay_s: int = 30
) -> dict[str, Any] | None:
    """Ends a process that no longer answers, so that another is started: a hang is never silent."""
    if substrate.probes != "command":
        return None
    times = _times(period_s=period_s, initial_delay_s=initial_delay_s)
    return {"exec": {"command": ["python", "-m", "drumroll.probe", target]}} | times


def _times(*, period_s: int = 20, initial_delay_s: int = 30) -> dict[str, Any]:
    return {
        "initialDelaySeconds": initial_delay_s,
        "periodSeconds": period_s,
        "timeoutSeconds": 20,
        "failureThreshold": 3,
    }
