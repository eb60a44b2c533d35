"""Reads, checks, tokenises and stores a job's data sets. The user's mistakes are raised before anything is written."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from drumroll.api.sources import DataSource
from drumroll.api.spec import RLJobSpec
from drumroll.data.checks import Example, Problem, check_row, report
from drumroll.data.files import Row, Rows
from drumroll.data.layouts import ColumnMap, map_columns
from drumroll.data.prepared import DatasetInfo, Name, PreparedRow, content_digest, write_info, write_rows
from drumroll.data.prompts import EncodedPrompt, PromptEncoder, tokenizer_digest
from drumroll.data.reading import read_rows
from drumroll.data.tasks import read_tasks
from drumroll.errors import DataError, JobError

logger = logging.getLogger(__name__)

_NEEDS_ANSWER = ("math", "exact")


@dataclass(frozen=True, slots=True)
class LoadedData:
    """A data set in memory, checked."""

    info: DatasetInfo
    rows: list[PreparedRow]


def prepare(spec: RLJobSpec, *, model_dir: Path, source_dir: Path, out_dir: Path) -> DatasetInfo:
    """Check `data.train` and `data.eval` wholly, then write them to `out_dir` (replacing what was there).

    Raises:
        JobError, DataError: as `check`; nothing has been written then.
    """
    train, held_out = _load_both(spec, model_dir=model_dir, source_dir=source_dir)
    write_rows(train.rows, out_dir / "train.arrow")
    if held_out is not None:
        write_rows(held_out.rows, out_dir / "eval.arrow")
    info = _joined(train, held_out)
    write_info(info, out_dir)
    return info


def check(spec: RLJobSpec, *, model_dir: Path, source_dir: Path) -> DatasetInfo:
    """All checks of `prepare`, without writing anything: for resume.

    Raises:
        JobError: a field of the job is wrong: column overrides, the model's tokenizer or template, tasks.
        DataError: the data cannot be read, or rows cannot be used (named with column and count).
    """
    return _joined(*_load_both(spec, model_dir=model_dir, source_dir=source_dir))


def _joined(train: LoadedData, held_out: LoadedData | None) -> DatasetInfo:
    return train.info if held_out is None else replace(train.info, eval=held_out.info)


def _load_both(spec: RLJobSpec, *, model_dir: Path, source_dir: Path) -> tuple[LoadedData, LoadedData | None]:
    template = spec.model.chat_template
    encoder = PromptEncoder.load(
        model_dir,
        chat_template=None if template is None else source_dir / Path(template).expanduser(),
        trust_remote_code=spec.model.trust_remote_code,
    )
    loader = _Loader(spec, encoder, tokenizer_digest(model_dir), source_dir)
    train = loader.load(spec.data.train, "train")
    return train, None if spec.data.eval is None else loader.load(spec.data.eval, "eval")


@dataclass(frozen=True, slots=True)
class _Loader:
    spec: RLJobSpec
    encoder: PromptEncoder
    tokenizer_digest: str
    source_dir: Path

    def load(self, source: DataSource, name: Name) -> LoadedData:
        field = f"data.{name}"
        rows = self._read(source, name)
        columns = self._columns(rows, source, field)
        examples = self._check_rows(rows, columns)
        encoded = self._encode(examples, columns, rows)
        self._require_known_tokens(encoded)
        kept = self._within_limit(examples, encoded, columns, rows)
        prepared = [
            PreparedRow(example.row, prompt.token_ids, prompt.text, _reward_inputs(example)) for example, prompt in kept
        ]
        return LoadedData(self._info(prepared, rows, columns, len(examples) - len(kept)), prepared)

    def _read(self, source: DataSource, name: Name) -> Rows:
        field = f"data.{name}"
        if source.path is None:
            return _as_chat(
                read_tasks(source.tasks, field=field, max_rows=source.max_prompts), self.encoder.has_template
            )
        split = source.split or ("train" if name == "train" else "test")
        return read_rows(source.path, source_dir=self.source_dir, split=split, max_rows=source.max_prompts)

    def _columns(self, rows: Rows, source: DataSource, field: str) -> ColumnMap:
        if source.tasks:
            return ColumnMap("tasks", "prompt", "answer", None, "metadata")
        columns = map_columns(rows.rows, rows.columns, source.columns, field=field, needs_answer=self.needs_answer)
        if columns.answer is None and self.needs_answer:
            raise DataError(
                f"{field}: reward.type {self.spec.reward.type} compares with an answer, but {rows.origin} has no "
                f"answer column among {', '.join(map(repr, rows.columns))}; set {field}.columns.answer"
            )
        return columns

    @property
    def needs_answer(self) -> bool:
        return self.spec.reward.type in _NEEDS_ANSWER

    def _check_rows(self, rows: Rows, columns: ColumnMap) -> list[Example]:
        checked = [
            check_row(row, number, columns, needs_answer=self.needs_answer)
            for number, row in enumerate(rows.rows, start=1)
        ]
        problems = [problem for result in checked if not isinstance(result, Example) for problem in result]
        if problems:
            raise report(problems, origin=rows.origin, num_rows=len(rows.rows))
        return [example for example in checked if isinstance(example, Example)]

    def _encode(self, examples: list[Example], columns: ColumnMap, rows: Rows) -> list[EncodedPrompt]:
        results = self.encoder.encode(examples, column=columns.prompt)
        problems = [result for result in results if isinstance(result, Problem)]
        if problems:
            raise report(problems, origin=rows.origin, num_rows=len(rows.rows))
        return [result for result in results if isinstance(result, EncodedPrompt)]

    def _require_known_tokens(self, encoded: list[EncodedPrompt]) -> None:
        size = self.encoder.vocab_size
        largest = max((max(prompt.token_ids) for prompt in encoded), default=0)
        if size is not None and largest >= size:
            raise JobError(
                f"model.path: the tokenizer made token {largest}, but the model's config.json has vocab_size {size}: "
                "they belong to different models"
            )

    def _within_limit(
        self, examples: list[Example], encoded: list[EncodedPrompt], columns: ColumnMap, rows: Rows
    ) -> list[tuple[Example, EncodedPrompt]]:
        limit = self.spec.data.max_prompt_tokens
        pairs = list(zip(examples, encoded, strict=True))
        kept = [(example, prompt) for example, prompt in pairs if len(prompt.token_ids) <= limit]
        if len(kept) == len(pairs):
            return kept
        problems = [
            Problem(
                example.row, columns.prompt, f"has {len(prompt.token_ids)} tokens, over data.maxPromptTokens: {limit}"
            )
            for example, prompt in pairs
            if len(prompt.token_ids) > limit
        ]
        if self.spec.data.overlong_prompts == "error" or not kept:
            longest = max(len(prompt.token_ids) for prompt in encoded)
            error = report(problems, origin=rows.origin, num_rows=len(rows.rows))
            raise DataError(f"{error}\nSet data.maxPromptTokens to {longest}, or data.overlongPrompts to skip.")
        logger.warning(
            "%s: %d of %d prompts are over %d tokens and are left out", rows.origin, len(problems), len(pairs), limit
        )
        return kept

    def _info(self, prepared: list[PreparedRow], rows: Rows, columns: ColumnMap, skipped: int) -> DatasetInfo:
        tokens = np.array([len(row.prompt_ids) for row in prepared])
        eos = self.encoder.eos_token_ids
        if not eos:
            logger.warning("the model has no end token: its answers end at data.maxResponseTokens only")
        pad = self.encoder.pad_token_id
        return DatasetInfo(
            digest=content_digest(prepared),
            num_prompts=len(prepared),
            min_prompt_tokens=int(tokens.min()),
            mean_prompt_tokens=round(float(tokens.mean()), 3),
            max_prompt_tokens=int(tokens.max()),
            tokenizer_digest=self.tokenizer_digest,
            eos_token_ids=eos,
            pad_token_id=pad if pad is not None else (eos[0] if eos else 0),
            source=rows.origin,
            layout=columns.layout,
            columns=columns.used(),
            all_columns=tuple(name for name in rows.columns if name != columns.prompt),
            skipped_rows=skipped,
        )


def _reward_inputs(example: Example) -> Row:
    return {
        "prompt": example.prompt,
        "answer": example.answer,
        "metadata": example.metadata,
        "columns": example.columns,
    }


def _as_chat(rows: Rows, has_template: bool) -> Rows:
    """Generated questions become one user message where the model has a chat template, else they stay text."""
    if not has_template:
        return rows
    chat = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows.rows]
    return replace(rows, rows=chat)
