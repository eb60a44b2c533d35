"""From prompts to token ids, by the model's own tokenizer and chat template.

Chat prompts go through the template with a generation prompt; one that ends with an assistant message is continued
instead, without a second assistant header. Text prompts are tokenised as they are, behind the tokens that the
tokenizer itself puts in front of every text (such as a begin token).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumroll.data.checks import Example, Problem
from drumroll.errors import JobError

_BATCH = 1000
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """One prompt, ready for an engine."""

    text: str
    """After the template."""
    token_ids: list[int]


class PromptEncoder:
    """A model's tokenizer and template."""

    def __init__(self, tokenizer: Any, *, model_dir: Path, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self._model_dir = model_dir
        self._prefix = _own_prefix(tokenizer)

    @classmethod
    def load(
        cls, model_dir: Path, *, chat_template: Path | None = None, trust_remote_code: bool = False
    ) -> "PromptEncoder":
        """Load the tokenizer of a model directory; `chat_template` is a file that replaces the model's own template.

        Raises:
            JobError: the directory, its tokenizer or the template file cannot be read.
        """
        if not model_dir.is_dir():
            raise JobError(
                f"model.path: {model_dir} is not a directory; give one with config.json, weights and tokenizer"
            )
        template = None if chat_template is None else _read_template(chat_template)
        try:
            tokenizer = _tokenizer_class(model_dir).from_pretrained(
                str(model_dir), local_files_only=True, trust_remote_code=trust_remote_code
            )
        # transformers and tokenizers raise nearly every type, Exception itself among them, for files they cannot read.
        except Exception as error:
            raise JobError(f"model.path: {model_dir} has no tokenizer that transformers can load: {error}") from error
        return cls(tokenizer, model_dir=model_dir, chat_template=template)

    @property
    def has_template(self) -> bool:
        return self._template is not None or bool(getattr(self._tokenizer, "chat_template", None))

    @property
    def vocab_size(self) -> int | None:
        """Tokens that the model has embeddings of, by its config.json; None where that does not say."""
        return _model_vocabulary(self._model_dir)

    @property
    def pad_token_id(self) -> int | None:
        value = self._tokenizer.pad_token_id
        return None if value is None else int(value)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's end token and those of the model directory (generation_config.json, else config.json)."""
        own = self._tokenizer.eos_token_id
        return tuple(sorted({*([] if own is None else [int(own)]), *_model_eos(self._model_dir)}))

    def encode(self, examples: Sequence[Example], *, column: str) -> list[EncodedPrompt | Problem]:
        """Encode prompts; one that the template refuses or that has no tokens comes back as a problem.

        Raises:
            JobError: a chat prompt, and the model has no template.
        """
        rendered = [self._render(example, column) for example in examples]
        texts = [text for text in rendered if isinstance(text, str)]
        ids = iter(self._tokenize(texts))
        return [
            self._finish(example, text, next(ids), column) if isinstance(text, str) else text
            for example, text in zip(examples, rendered, strict=True)
        ]

    def _finish(self, example: Example, text: str, ids: list[int], column: str) -> EncodedPrompt | Problem:
        prefix = self._prefix if isinstance(example.prompt, str) else []
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        if not ids:
            return Problem(example.row, column, "has no tokens in this model's tokenizer")
        return EncodedPrompt(text, prefix + ids)

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = []
        for start in range(0, len(texts), _BATCH):
            batch = self._tokenizer(texts[start : start + _BATCH], add_special_tokens=False, verbose=False)
            ids.extend([int(token) for token in row] for row in batch["input_ids"])
        return ids

    def _render(self, example: Example, column: str) -> str | Problem:
        if isinstance(example.prompt, str):
            return example.prompt
        if not self.has_template:
            raise JobError(
                f"model.path: {self._model_dir} has no chat template, but row {example.row} has chat messages in "
                f"column {column!r}; set model.chatTemplate to a file with a Jinja template, or give prompts as text"
            )
        continued = example.prompt[-1]["role"] == "assistant"
        if continued and not example.prompt[-1].get("content"):
            return Problem(
                example.row, column, "ends with an assistant message without text, which cannot be continued"
            )
        try:
            text = self._tokenizer.apply_chat_template(
                example.prompt,
                tools=example.tools,
                chat_template=self._template,
                add_generation_prompt=not continued,
                continue_final_message=continued,
                tokenize=False,
            )
        # A template is a program of the model's author: it can raise anything.
        except Exception as error:  # noqa: BLE001
            return Problem(example.row, column, f"is refused by the chat template: {type(error).__name__}: {error}")
        return str(text)


def _tokenizer_class(model_dir: Path) -> Any:
    """What loads the directory's tokenizer. AutoTokenizer would choose the generic class as well where a directory
    names it, but imports torch first, which takes seconds."""
    try:
        config = json.loads((model_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    generic = config.get("tokenizer_class") in _GENERIC_CLASSES and "auto_map" not in config
    if generic and (model_dir / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _own_prefix(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer puts in front of a text by itself; an end token behind it is left out."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a")["input_ids"])
    for start in range(len(full)):
        if plain and full[start : start + len(plain)] == plain:
            return full[:start]
    return []


def _read_template(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"model.chatTemplate: {path} cannot be read: {error}") from error
    if not text.strip():
        raise JobError(f"model.chatTemplate: {path} is empty; write a Jinja chat template into it")
    return text


def _model_eos(model_dir: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        try:
            value = json.loads((model_dir / name).read_text(encoding="utf-8")).get("eos_token_id")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError) as error:
            raise JobError(f"model.path: {model_dir / name} cannot be read: {error}") from error
        if value is not None:
            return [int(token) for token in (value if isinstance(value, list) else [value])]
    return []


def _model_vocabulary(model_dir: Path) -> int | None:
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def tokenizer_digest(model_dir: Path) -> str:
    """SHA-256 over the names and bytes of a directory's tokenizer files; templates are not part of it."""
    digest = hashlib.sha256()
    for name in TOKENIZER_FILES:
        path = model_dir / name
        if path.is_file():
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
