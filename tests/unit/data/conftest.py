"""A tiny character tokenizer on disk, jobs that point at it, and writers of data files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drumroll.api.spec import RLJobSpec

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CASES = Path(__file__).parent / "cases"


def _save_tokenizer(directory: Path, *, template: str | None, begin: bool) -> Path:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", "<bos>", "\n", *(chr(code) for code in range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A <eos>", special_tokens=[("<bos>", 3), ("<eos>", 1)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")
    fast.chat_template = template
    fast.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    return directory


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a tokenizer of one token per character and a chat template."""
    return _save_tokenizer(tmp_path_factory.mktemp("chat-model"), template=TEMPLATE, begin=False)


@pytest.fixture(scope="session")
def base_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `model_dir`, without a template."""
    return _save_tokenizer(tmp_path_factory.mktemp("base-model"), template=None, begin=False)


@pytest.fixture(scope="session")
def begin_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a template; its tokenizer puts <bos> before and <eos> behind every text."""
    return _save_tokenizer(tmp_path_factory.mktemp("begin-model"), template=None, begin=True)


@pytest.fixture
def job() -> Callable[..., RLJobSpec]:
    """Makes a spec: job(path, reward="math", eval=path, columns={…}, maxPromptTokens=…)."""

    def make(
        path: Any, *, reward: str = "function", eval: Any = None, model: dict[str, Any] | None = None, **data: Any
    ) -> RLJobSpec:
        train = {"path": str(path)} if path is not None else {}
        for name in ("split", "columns", "tasks", "maxPrompts"):
            if name in data:
                train[name] = data.pop(name)
        data["train"] = train
        if eval is not None:
            data["eval"] = eval if isinstance(eval, dict) else {"path": str(eval)}
        rewards: dict[str, Any] = {"type": reward}
        if reward == "function":
            rewards["function"] = "my_rewards:score"
        return RLJobSpec.model_validate({"model": {"path": "unused", **(model or {})}, "data": data, "reward": rewards})

    return make


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows as JSON Lines."""

    def write(rows: list[Any], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows as Parquet, types inferred."""

    def write(rows: list[Any], name: str = "rows.parquet") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path

    return write
