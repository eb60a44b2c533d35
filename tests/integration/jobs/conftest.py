"""Whole jobs by `drumroll run`, as a user starts them: a process of its own, in a folder of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from drumroll_cli import main as cli
from drumroll_cli.story import JobStory, find_job_dir, read_story
from drumroll_planner import records as r
from drumroll_proto.v1 import scheduler_pb2
from drumroll_trainer.learner.tiny_model import make_tiny_model
from typer.testing import CliRunner

from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.testing import eventually_sync, merged

DRUMROLL = Path(sys.executable).parent / "drumroll"
LONGEST_S = 240.0
"""For a run that takes 15 seconds on a quiet machine."""

SPEC: dict[str, Any] = {
    "model": {"path": "model", "dtype": "float32"},
    "data": {"train": {"path": "train.jsonl"}, "maxPromptTokens": 16, "maxResponseTokens": 24},
    "reward": {"type": "function", "function": "lengths:score"},
    "algorithm": {"groupSize": 2, "promptsPerStep": 2, "learningRate": 1e-3},
    "steps": 6,
    "rollout": {
        "maxConcurrentSamples": 16,
        "graceSeconds": 10,
        "engine": {
            "type": "replay",
            "replay": {"medianTokens": 8, "sigma": 0.5, "stepSeconds": 0.02, "loadSeconds": 0.02},
        },
    },
    "trainer": {"checkpoint": {"everySteps": 2}, "threads": 1},
    "scheduler": {"heartbeatSeconds": 0.2, "leaseSeconds": 5},
    "stream": {"embedded": {"maxBytes": "64Mi"}},
}
REWARD = '''"""Answers of an even number of characters are right."""


def score(completions, **columns):
    return [float(len(text) % 2 == 0) for text in completions]
'''


class LocalJob:
    """A job file with all it needs, and the `drumroll run` of it."""

    def __init__(self, folder: Path, model: Path, spec: dict[str, Any], *, prompts: int = 24) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.run_dir = folder / "run"
        self.spec = spec
        self._process: subprocess.Popen[str] | None = None
        self._family: dict[tuple[int, float], psutil.Process] = {}
        if not (folder / "model").exists():
            (folder / "model").symlink_to(model)
        (folder / "lengths.py").write_text(REWARD)
        self.write_prompts(range(prompts))
        self.write_job()

    def write_job(self) -> None:
        job = {"apiVersion": "drumroll.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "tiny"}, "spec": self.spec}
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))

    def write_prompts(self, numbers: "range | list[int]") -> None:
        rows = [json.dumps({"prompt": f"{number}+1=", "answer": str(number + 1)}) for number in numbers]
        (self.folder / "train.jsonl").write_text("\n".join(rows) + "\n")

    def start(self, *arguments: str, resume: bool = False, env: dict[str, str] | None = None) -> "LocalJob":
        """`drumroll run` in a process group of its own; `resume` goes on with the run directory."""
        what = ["--resume", str(self.run_dir)] if resume else ["job.yaml", "--run-dir", str(self.run_dir)]
        with (self.folder / "output.txt").open("a") as output:
            self._process = subprocess.Popen(
                [str(DRUMROLL), "run", *what, *arguments],
                cwd=self.folder,
                env={**os.environ, "COLUMNS": "200", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        return self

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    @property
    def story(self) -> str:
        """All that was written, for the message of a failed assertion."""
        logs = [f"--- {path.name}\n{path.read_text()[-6000:]}" for path in sorted(self.run_dir.glob("logs/*.log"))]
        return "\n".join([self.output, *logs])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self, deadline_s: float = LONGEST_S) -> int:
        """The exit code of `drumroll run`; nothing that it started may be left."""
        assert self._process is not None
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"drumroll run has not ended in {deadline_s} s\n{self.story}") from None
        eventually_sync(lambda: not self.left(), 10.0, f"no process left: {self.left()}")
        return code

    def complete(self) -> None:
        """Wait for an end in order, and let the audit prove it."""
        assert self.wait() == 0, self.story
        code, report = self.audit()
        assert code == 0, f"{report}\n{self.story}"
        assert "nothing found" in report

    @property
    def pids(self) -> dict[str, int]:
        """Pod name to pid, of the processes that run now."""
        try:
            return dict(json.loads((self.run_dir / "processes.json").read_text()))
        except FileNotFoundError:
            return {}

    def wait_for_pid(self, name: str, *, other_than: int | None = None) -> int:
        """The pid of a pod, once it runs (again)."""

        def pid() -> int | None:
            self._must_run()
            found = self.pids.get(name)
            return found if found != other_than else None

        return eventually_sync(pid, LONGEST_S, f"a process of {name}\n{self.output}") or 0

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to the process of a pod; its pid."""
        self.remember()
        pid = self.wait_for_pid(name)
        os.kill(pid, number)
        return pid

    def wait_for_leases(self, name: str) -> None:
        """Until the scheduler has given samples to a replica."""

        async def leases() -> int:
            async with SchedulerClient(self.resolved, "viewer") as scheduler:
                status = await scheduler.status(scheduler_pb2.StatusRequest(), deadline_s=LONGEST_S)
            return sum(replica.leases for replica in status.replicas if replica.name == name)

        self.wait_for_pid(name)
        eventually_sync(lambda: asyncio.run(leases()), LONGEST_S, f"leases of {name}\n{self.output}")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.remember()
        os.kill(self.pid, signal.SIGINT)

    @property
    def steps(self) -> int:
        """Steps trained, by metrics.jsonl."""
        return len(self.metrics)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_steps(self, count: int) -> None:
        def done() -> bool:
            self._must_run()
            return self.steps >= count

        eventually_sync(done, LONGEST_S, f"{count} steps\n{self.output}")
        self.remember()

    def _must_run(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"ended with {self._process.returncode}\n{self.story}"

    def remember(self) -> None:
        """Take in all processes of the run that exist now."""
        try:
            root = psutil.Process(self.pid)
            family = [root, *root.children(recursive=True)]
            self._family |= {(process.pid, process.create_time()): process for process in family}
        except psutil.NoSuchProcess:
            return

    def left(self) -> list[str]:
        """Processes of this run that still exist, however they came to be orphans."""
        found = {process.pid: process for process in self._family.values() if process.is_running()}
        for process in psutil.process_iter():
            try:
                mine = str(self.folder) in "\0".join(process.environ().values()) and process.pid != os.getpid()
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
            if mine:
                found[process.pid] = process
        return [
            f"{process.pid} {process.name()}"
            for process in found.values()
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]

    def end(self) -> None:
        """Leave nothing behind, however the test went."""
        if self._process is not None and self._process.poll() is None:
            self.remember()
            self._process.kill()
            self._process.wait()
        for process in self._family.values():
            if process.is_running():
                process.kill()

    @property
    def job_dir(self) -> Path:
        return find_job_dir(self.run_dir)

    @property
    def resolved(self) -> ResolvedJob:
        return ResolvedJob.load(self.run_dir / "job.json")

    @property
    def notes(self) -> set[str]:
        """Reasons of what was journaled for people."""
        return {record.reason for record in self.read().records if isinstance(record, r.Noted)}

    def read(self) -> JobStory:
        """The journal."""
        return read_story(self.run_dir)

    def log(self, name: str) -> str:
        return (self.run_dir / "logs" / f"{name}.log").read_text()

    def audit(self) -> tuple[int, str]:
        """`drumroll audit`: exit code and what it says."""
        return drumroll("audit", str(self.run_dir))

    def replay(self) -> tuple[int, str]:
        """`drumroll replay`: exit code and what it says."""
        return drumroll("replay", str(self.run_dir))


def drumroll(*arguments: str) -> tuple[int, str]:
    """A verb in this process: exit code, and what it wrote. Errors on purpose end as in `main`."""
    result = CliRunner().invoke(cli.app, list(arguments))
    if result.exception is None or isinstance(result.exception, SystemExit):
        return result.exit_code, result.output
    code = cli.exit_code_of(result.exception)
    assert code is not None, result.exception
    return code, f"{result.output}drumroll: {result.exception}\n"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 14,000 parameters that speaks characters."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=0, hidden=32, layers=1, heads=1, max_tokens=128)


@pytest.fixture(scope="session")
def new_job() -> Callable[..., LocalJob]:
    """new_job(folder, model, **changes of the spec), to be ended by the caller."""
    return lambda folder, model, **changes: LocalJob(folder, model, merged(SPEC, changes))


@pytest.fixture
def make_job(tmp_path: Path, model: Path) -> Iterator[Callable[..., LocalJob]]:
    """make_job(name="job", prompts=24, **changes of the spec)."""
    jobs: list[LocalJob] = []

    def make(name: str = "job", *, prompts: int = 24, **changes: Any) -> LocalJob:
        jobs.append(LocalJob(tmp_path / name, model, merged(SPEC, changes), prompts=prompts))
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


@pytest.fixture
def verb() -> Callable[..., tuple[int, str]]:
    """drumroll(*arguments) in this process: exit code and output."""
    return drumroll
