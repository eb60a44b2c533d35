"""Ways not to reach a cluster: each is a sentence that says what to do."""

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from drumroll_cli import main as cli
from drumroll_cli.cluster.answers import ClusterUnreachable
from drumroll_cli.cluster.connection import Cluster, on_cluster
from drumroll_cli.cluster.where import Where
from typer.testing import CliRunner

from drumroll.embedded import free_port
from drumroll.errors import DrumrollError, UserError


def kubeconfig(folder: Path, **changes: Any) -> str:
    """A file with one context, a, that leads to a port where nobody listens."""
    server = f"http://127.0.0.1:{free_port()}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "research"}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "current-context": "a",
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config | changes))
    return str(path)


async def names(cluster: Cluster) -> tuple[str, str]:
    return cluster.context, cluster.namespace


async def version(cluster: Cluster) -> Any:
    return await cluster.get("/version")


def test_context_and_namespace_come_from_the_kubeconfig(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    assert on_cluster(Where(path), names) == ("a", "research")
    assert on_cluster(Where(path, namespace="other"), names) == ("a", "other")


def test_the_variable_names_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{kubeconfig(tmp_path)}")
    assert on_cluster(Where(), names) == ("a", "research")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [", "cannot be used: while parsing"),
        ("", "it is empty"),
        ("apiVersion: v1\nclusters: []\ncontexts: []\nusers: []\n", "has no current context"),
    ],
)
def test_a_broken_kubeconfig_is_the_users_mistake(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UserError, match=part):
        on_cluster(Where(str(path)), names)


def test_no_kubeconfig_at_all_says_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="write --kubeconfig FILE or set KUBECONFIG"):
        on_cluster(Where(str(tmp_path / "none")), names)


def test_an_unknown_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no context b: `kubectl config get-contexts` lists them"):
        on_cluster(Where(kubeconfig(tmp_path), context="b"), names)


def test_a_server_that_does_not_answer_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="context a does not answer") as caught:
        on_cluster(Where(kubeconfig(tmp_path)), version)
    assert cli.exit_code_of(caught.value) == 1


def test_a_slow_server_costs_completion_no_more_than_its_time(tmp_path: Path) -> None:
    words = f"drumroll status --kubeconfig {kubeconfig(tmp_path)} f"
    environment = {"_DRUMROLL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}
    result = CliRunner().invoke(cli.app, [], env=environment, prog_name="drumroll")
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    "verb", ["status", "top", "doctor", "logs x", "scale x 2", "suspend x", "resume x", "cancel x --yes"]
)
def test_every_verb_says_it_in_one_line(verb: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, [*verb.split(), "--kubeconfig", kubeconfig(tmp_path)])
    assert isinstance(result.exception, DrumrollError)
    assert "\n" not in str(result.exception)
    assert "does not answer" in str(result.exception)


def test_without_the_client_the_extra_is_named() -> None:
    script = (
        "import sys\n"
        "sys.modules['kubernetes'] = None\n"
        "sys.argv = ['drumroll', 'status']\n"
        "from drumroll_cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "drumroll: this verb needs more: pip install 'drumroll[operator]'\n"


def test_a_certificate_that_is_not_trusted_is_told_as_such(tmp_path: Path) -> None:
    cluster = Cluster.__new__(Cluster)
    target = on_cluster(Where(kubeconfig(tmp_path)), _target)
    cluster._target = target
    error = cluster._unreachable(ssl.SSLError("unknown authority"))
    assert isinstance(error, UserError)
    assert "certificate-authority" in str(error)


async def _target(cluster: Cluster) -> Any:
    return cluster._target
