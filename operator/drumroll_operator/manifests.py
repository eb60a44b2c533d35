"""A job's pods, as pure functions of (job, substrate): the same argv and environment on a laptop and on a cluster.

Commands hold no absolute path but those of job.json's own layout, and no fixed port: only the scheduler and the store
have known addresses, and those come from job.json as well. Nothing here reads a clock, a file or the network.
"""

from collections.abc import Mapping
from typing import Any

from drumroll.api.spec import EnvVar
from drumroll.job import ResolvedJob
from drumroll.valkey import server_command, settings_of
from drumroll_operator.substrate import Role, Substrate

GPU = "nvidia.com/gpu"
STORE_GRACE_S = 30
SCHEDULER_GRACE_S = 30
TRAINER_GRACE_S = 120

Manifest = dict[str, Any]


def render_pods(job: ResolvedJob, substrate: Substrate) -> list[Manifest]:
    """All pods of the job, in the order in which they are best started."""
    pods = [] if job.spec.stream.url else [store_pod(job, substrate)]
    pods += [scheduler_pod(job, substrate)]
    pods += [trainer_pod(job, substrate, index) for index in range(job.spec.trainer.replicas)]
    pods += [rollout_pod(job, substrate, index) for index in range(job.spec.rollout.replicas)]
    return pods


def store_pod(job: ResolvedJob, substrate: Substrate) -> Manifest:
    """The embedded Valkey: sample stream and ledger."""
    command = [part for part in server_command(settings_of(job)) if not part.startswith("--bind=")]
    container = {"command": [*command, f"--bind={substrate.store_bind}"], "livenessProbe": _probe("store")}
    return _pod(job, substrate, "store", "store", container, grace_s=STORE_GRACE_S, restart="Always")


def scheduler_pod(job: ResolvedJob, substrate: Substrate) -> Manifest:
    """The scheduler; its init container prepares the data set where nobody has done so yet."""
    container = {
        "command": ["python", "-m", "drumroll_scheduler"],
        "resources": job.spec.scheduler.resources.to_wire(),
        "livenessProbe": _probe("scheduler"),
    }
    pod = _pod(
        job, substrate, "scheduler", "scheduler", container, grace_s=SCHEDULER_GRACE_S, env=job.spec.scheduler.env
    )
    main = pod["spec"]["containers"][0]
    pod["spec"]["initContainers"] = [
        {**{key: main[key] for key in main if key in ("image", "env", "volumeMounts", "resources")}}
        | {"name": "prepare-data", "command": ["python", "-m", "drumroll.data"]}
    ]
    return pod


def rollout_pod(job: ResolvedJob, substrate: Substrate, index: int) -> Manifest:
    """One replica."""
    rollout = job.spec.rollout
    container = {
        "command": ["python", "-m", "drumroll_rollout"],
        "resources": rollout.resources.to_wire(),
        "livenessProbe": _probe("rollout", period_s=30, initial_delay_s=600),
    }
    return _pod(
        job, substrate, "rollout", f"rollout-{index}", container, grace_s=rollout.grace_seconds, env=rollout.env
    )


def trainer_pod(job: ResolvedJob, substrate: Substrate, index: int) -> Manifest:
    """One pod of the trainer; several processes, or several pods, meet through torchrun."""
    processes = trainer_processes(job)
    pods = job.spec.trainer.replicas
    command = ["python", "-m", "drumroll_trainer"]
    if processes > 1 or pods > 1:
        meeting = ["--standalone"] if pods == 1 else [f"--nnodes={pods}", f"--node-rank={index}", *_rendezvous(job)]
        command = ["torchrun", *meeting, f"--nproc-per-node={processes}", "-m", "drumroll_trainer"]
    container = {"command": command, "resources": job.spec.trainer.resources.to_wire()}
    return _pod(
        job, substrate, "trainer", f"trainer-{index}", container, grace_s=TRAINER_GRACE_S, env=job.spec.trainer.env
    )


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


def _rendezvous(job: ResolvedJob) -> list[str]:
    return ["--rdzv-backend=c10d", f"--rdzv-id={job.uid}", f"--rdzv-endpoint={job.name}-trainer"]


def _pod(
    job: ResolvedJob,
    substrate: Substrate,
    role: Role,
    name: str,
    container: Mapping[str, Any],
    *,
    grace_s: int,
    env: list[EnvVar] | None = None,
    restart: str = "OnFailure",
) -> Manifest:
    """A pod of one container named after its role."""
    mounts = [mount for mount in substrate.mounts if role in mount.roles]
    main = {
        "name": role,
        **({"image": substrate.image} if substrate.image else {}),
        "env": _environment(job, substrate, role, name) + _user_environment(job, env or []),
        "volumeMounts": [
            {"name": m.name, "mountPath": m.path, **({"readOnly": True} if m.read_only else {})} for m in mounts
        ],
        **{key: value for key, value in container.items() if value},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-{name}",
            "namespace": job.namespace,
            "labels": {"drumroll.dev/job": job.name, "drumroll.dev/uid": job.uid, "drumroll.dev/role": role},
        },
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": grace_s,
            "volumes": [{"name": mount.name, **mount.source} for mount in mounts],
            "containers": [main],
        },
    }


def _environment(job: ResolvedJob, substrate: Substrate, role: Role, name: str) -> list[dict[str, Any]]:
    """Identity, and the switches that libraries read from the environment."""
    values = {"DRUMROLL_JOB": substrate.job_file, "DRUMROLL_ROLE": role, "DRUMROLL_REPLICA": name}
    # Nothing here calls gRPC in a forked child; the library's fork handlers only write to the log.
    values["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    if role in ("rollout", "trainer"):
        threads = getattr(job.spec, role).threads or threads_per_process(job, substrate.cores)
        # Spinning OpenMP threads cost 4 to 10 times where cores are shared.
        values |= {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        values |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    if role == "rollout":
        values |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return [{"name": key, "value": value} for key, value in values.items()]


def _user_environment(job: ResolvedJob, role_env: list[EnvVar]) -> list[dict[str, Any]]:
    """The job's own variables; a role's win. References stay references: nothing resolves them here."""
    merged = {variable.name: variable for variable in [*job.spec.env, *role_env]}
    return [variable.to_wire() for variable in merged.values()]


def _probe(target: str, *, period_s: int = 20, initial_delay_s: int = 30) -> dict[str, Any]:
    """Ends a process that no longer answers, so that another is started: a hang is never silent."""
    return {
        "exec": {"command": ["python", "-m", "drumroll.probe", target]},
        "initialDelaySeconds": initial_delay_s,
        "periodSeconds": period_s,
        "timeoutSeconds": 20,
        "failureThreshold": 3,
    }
