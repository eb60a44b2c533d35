"""What a reward process is told before its first call, and the environment that it may see. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from drumroll.api.quantity import parse_quantity
from drumroll.api.spec import RLJobSpec

RewardType = Literal["math", "exact", "function", "tasks"]

_KEPT = frozenset(
    {
        "PATH",
        "HOME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "VIRTUAL_ENV",
        "LD_LIBRARY_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "MKL_NUM_THREADS",
        "TOKENIZERS_PARALLELISM",
        "HF_HOME",
        "HF_HUB_OFFLINE",
    }
)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """How to score."""

    type: RewardType
    source_dir: str
    memory_bytes: int
    function: str | None = None
    pattern: str | None = None
    env_names: tuple[str, ...] = ()
    """Variables that the job gives to its rollouts, hence to the reward."""

    def to_message(self) -> dict[str, Any]:
        """As a frame."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "WorkerSetup":
        """From a frame."""
        return cls(**{**message, "env_names": tuple(message["env_names"])})


def worker_setup(spec: RLJobSpec, source_dir: str) -> WorkerSetup:
    """The setup that a job asks for."""
    reward = spec.reward
    return WorkerSetup(
        type=reward.type,
        source_dir=source_dir,
        memory_bytes=int(parse_quantity(reward.memory)),
        function=reward.function,
        pattern=reward.pattern,
        env_names=tuple(variable.name for variable in [*spec.env, *spec.rollout.env]),
    )


def worker_environment(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """What a reward process sees: a fixed list of harmless variables and those that the job names; never ours."""
    wanted = _KEPT | frozenset(names)
    return {
        name: value
        for name, value in environment.items()
        if (name in wanted or name.startswith("LC_")) and not name.startswith("DRUMROLL_")
    }
