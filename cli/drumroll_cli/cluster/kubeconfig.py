"""Finds the API server and the credentials: a kubeconfig, or the service account of the pod that this runs in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import incluster_config, kube_config
from kubernetes.aio.config.config_exception import ConfigException

from drumroll import environment
from drumroll.errors import UserError
from drumroll_cli.cluster.where import Where

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Target:
    """What a kubeconfig leads to."""

    configuration: Any
    context: str
    namespace: str


async def find_target(where: Where) -> Target:
    """Reads the kubeconfig; without one, the service account of the pod that this runs in."""
    configuration = Configuration()
    files = where.kubeconfig or environment.variable("KUBECONFIG") or "~/.kube/config"
    if not _any_exists(files):
        if where.kubeconfig is None and (namespace := _account_namespace()) is not None:
            incluster_config.load_incluster_config(client_configuration=configuration)
            return Target(configuration, "in-cluster", where.namespace or namespace)
        raise UserError(
            f"there is no kubeconfig ({files}): write --kubeconfig FILE or set KUBECONFIG; your cluster's provider "
            "says how to get one (kind: `kind export kubeconfig`)"
        )
    try:
        loader = await kube_config.load_kube_config(
            config_file=files, context=where.context, client_configuration=configuration
        )
    except ConfigException as error:
        raise UserError(_about_config(files, where.context, error)) from error
    except TypeError as error:  # The client's way to find that an entry is empty.
        raise UserError(
            f"the kubeconfig {files} cannot be used: its context names no user with credentials, or it is empty"
        ) from error
    except (OSError, yaml.YAMLError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"the kubeconfig {files} cannot be used: {error}") from error
    current = loader.current_context
    inner = current.get("context") or {}
    return Target(configuration, str(current.get("name")), where.namespace or inner.get("namespace") or "default")


def _any_exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(":") if file)


def _account_namespace() -> str | None:
    """Namespace of this pod's service account; None outside a cluster."""
    if not (_ACCOUNT / "token").exists():
        return None
    return (_ACCOUNT / "namespace").read_text().strip()


def _about_config(files: str, context: str | None, error: Exception) -> str:
    if context is not None and context in str(error):
        return f"the kubeconfig {files} has no context {context}: `kubectl config get-contexts` lists them"
    if "current-context" in str(error):
        return f"the kubeconfig {files} has no current context: choose one by --context"
    return f"the kubeconfig {files} cannot be used: {error}"
