"""A whole job but for its store: prepared data, tokens, job.json; for tests and benches."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drumroll.api.spec import RLJobSpec
from drumroll.data.prepared import DatasetInfo, PreparedRow, content_digest, write_info, write_rows
from drumroll.job import Endpoints, Layout, ResolvedJob, Secrets

UID = "job-1"
ROLES = ("scheduler", "rollout", "trainer", "viewer", "operator")


def write_data(data_dir: Path, num_prompts: int, *, prefix: str = "prompt", num_eval_prompts: int = 0) -> DatasetInfo:
    """A prepared data set of `num_prompts` short prompts, and one to evaluate on where `num_eval_prompts` is not 0."""
    rows, held_out = _rows(num_prompts, prefix), _rows(num_eval_prompts, f"held-out {prefix}")
    info = _info(rows)
    write_rows(rows, data_dir / "train.arrow")
    if held_out:
        write_rows(held_out, data_dir / "eval.arrow")
        info = replace(info, eval=_info(held_out))
    write_info(info, data_dir)
    return info


def _rows(num_prompts: int, prefix: str) -> list[PreparedRow]:
    return [
        PreparedRow(row + 1, [row % 50, 7], f"{prefix} {row}", _reward_inputs(f"{prefix} {row}"))
        for row in range(num_prompts)
    ]


def _info(rows: list[PreparedRow]) -> DatasetInfo:
    return DatasetInfo(
        digest=content_digest(rows),
        num_prompts=len(rows),
        min_prompt_tokens=2,
        mean_prompt_tokens=2.0,
        max_prompt_tokens=2,
        tokenizer_digest="tokenizer",
        eos_token_ids=(0,),
        pad_token_id=0,
        source="scripted",
        layout="custom",
        columns={"prompt": "prompt"},
        all_columns=(),
        skipped_rows=0,
    )


def _reward_inputs(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "answer": None, "metadata": None, "columns": {}}


def scripted_job(
    directory: Path,
    *,
    store_url: str,
    store_passwords: Mapping[str, Path],
    port: int,
    num_prompts: int = 16,
    num_eval_prompts: int = 0,
    spec: Mapping[str, Any] | None = None,
) -> ResolvedJob:
    """A job with its data written; `spec` overrides parts of a small one (4 steps of 2 groups of 2)."""
    values: dict[str, Any] = {
        "model": {"path": "model"},
        "data": {"train": {"path": "data.jsonl"}, "maxPromptTokens": 8, "maxResponseTokens": 64},
        "reward": {"type": "exact"},
        "algorithm": {"groupSize": 2, "promptsPerStep": 2},
        "steps": 4,
        "trainer": {"checkpoint": {"everySteps": 2}},
        "scheduler": {"heartbeatSeconds": 0.1, "leaseSeconds": 10.0},
    }
    for name, part in (spec or {}).items():
        values[name] = {**values[name], **part} if isinstance(values.get(name), dict) else part
    write_data(directory / "data", num_prompts, num_eval_prompts=num_eval_prompts)
    return ResolvedJob(
        uid=UID,
        name="scripted",
        namespace="default",
        spec=RLJobSpec.model_validate(values),
        layout=Layout(
            job_dir=str(directory / "job"),
            data_dir=str(directory / "data"),
            model_dir=str(directory / "model"),
            source_dir=str(directory),
        ),
        endpoints=Endpoints(scheduler=f"127.0.0.1:{port}", store=store_url),
        secrets=Secrets(
            token_files={role: str(_token_file(directory, role)) for role in ROLES},
            store_password_files={role: str(path) for role, path in store_passwords.items()},
        ),
        metrics_path=str(directory / "metrics.jsonl"),
    )


def _token_file(directory: Path, role: str) -> Path:
    path = directory / f"{role}.token"
    if not path.exists():
        path.write_text(secrets.token_hex(16))
    return path
