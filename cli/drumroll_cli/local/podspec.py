"""What of a Kubernetes pod spec the local substrate supports; anything else is refused by name, never ignored.

Supported: one container, init containers, command, env values and references to secret keys, volumes that are
directories at their own path, exec and HTTP liveness probes, restart policy, termination grace. Resources and images
are not emulated: a process sees the whole machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumroll.errors import UserError

_POD = {"restartPolicy", "terminationGracePeriodSeconds", "volumes", "containers", "initContainers"}
_CONTAINER = {"name", "image", "command", "env", "volumeMounts", "resources", "livenessProbe"}
_MOUNT = {"name", "mountPath", "readOnly"}
_PROBE = {"exec", "httpGet", "initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold"}


@dataclass(frozen=True, slots=True)
class Probe:
    """A liveness probe: a command, or a URL on this machine."""

    command: tuple[str, ...]
    url: str | None
    initial_delay_s: float
    period_s: float
    timeout_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class Container:
    """One process to run."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    from_shell: Mapping[str, str]
    """Variables whose value is a secret: name here to name in the user's shell."""
    gpus: int
    probe: Probe | None


@dataclass(frozen=True, slots=True)
class LocalPod:
    """A pod as the local substrate runs it."""

    name: str
    role: str
    init: tuple[Container, ...]
    container: Container
    directories: tuple[str, ...]
    restart: str
    grace_s: float


def parse_pod(manifest: Mapping[str, Any]) -> LocalPod:
    """Read a pod manifest.

    Raises:
        UserError: it uses something that the local substrate does not support.
    """
    spec, meta = manifest["spec"], manifest["metadata"]
    where = f"pod {meta['name']}"
    _refuse_unknown(where, spec, _POD)
    if len(spec["containers"]) != 1:
        raise UserError(f"{where}: the local substrate runs exactly one container per pod")
    directories = {volume["name"]: _directory(where, volume) for volume in spec.get("volumes", [])}
    init = tuple(_container(where, item, directories) for item in spec.get("initContainers", []))
    labels = meta.get("labels", {})
    return LocalPod(
        name=meta["name"].removeprefix(f"{labels.get('drumroll.dev/job', '')}-"),
        role=labels.get("drumroll.dev/role", spec["containers"][0]["name"]),
        init=init,
        container=_container(where, spec["containers"][0], directories),
        directories=tuple(sorted(directories.values())),
        restart=spec.get("restartPolicy", "Always"),
        grace_s=float(spec.get("terminationGracePeriodSeconds", 30)),
    )


def _container(where: str, item: Mapping[str, Any], directories: Mapping[str, str]) -> Container:
    where = f"{where}, container {item['name']}"
    _refuse_unknown(where, item, _CONTAINER)
    for mount in item.get("volumeMounts", []):
        _refuse_unknown(f"{where}, volume {mount['name']}", mount, _MOUNT)
        if directories.get(mount["name"]) != mount["mountPath"]:
            raise UserError(f"{where}: volume {mount['name']} must be mounted at its own path here")
    env: dict[str, str] = {}
    from_shell: dict[str, str] = {}
    for variable in item.get("env", []):
        if "valueFrom" in variable:
            _refuse_unknown(f"{where}, variable {variable['name']}", variable["valueFrom"], {"secretKeyRef"})
            from_shell[variable["name"]] = variable["name"]
        else:
            env[variable["name"]] = variable.get("value", "")
    gpus = int(item.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
    probe = _probe(where, item["livenessProbe"]) if "livenessProbe" in item else None
    return Container(item["name"], tuple(item["command"]), env, from_shell, gpus, probe)


def _probe(where: str, item: Mapping[str, Any]) -> Probe:
    _refuse_unknown(f"{where}, livenessProbe", item, _PROBE)
    url = None
    if "httpGet" in item:
        url = f"http://127.0.0.1:{item['httpGet']['port']}{item['httpGet'].get('path', '/')}"
    return Probe(
        command=tuple(item.get("exec", {}).get("command", ())),
        url=url,
        initial_delay_s=float(item.get("initialDelaySeconds", 0)),
        period_s=float(item.get("periodSeconds", 10)),
        timeout_s=float(item.get("timeoutSeconds", 1)),
        failures=int(item.get("failureThreshold", 3)),
    )


def _directory(where: str, volume: Mapping[str, Any]) -> str:
    source = {key: value for key, value in volume.items() if key != "name"}
    if set(source) != {"hostPath"}:
        raise UserError(
            f"{where}: volume {volume['name']} is a {next(iter(source), 'nothing')}; only directories work here"
        )
    path: str = source["hostPath"]["path"]
    return path


def _refuse_unknown(where: str, item: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(item) - known)
    if unknown:
        raise UserError(f"{where}: the local substrate does not support {', '.join(unknown)}")
