"""Tokens to text, for rewards. There is no way back: nothing here or elsewhere in this package encodes text."""

import json
from collections.abc import Sequence
from pathlib import Path

from drumroll.errors import JobError
from drumroll_rollout.collaborators import TextDecoder


def load_decoder(model_dir: Path, *, trust_remote_code: bool = False) -> TextDecoder:
    """A decoder of a model directory's tokenizer that leaves special tokens out.

    A tokenizer.json is read by the tokenizers library itself, which starts in a tenth of transformers' time and gives
    the same text.

    Raises:
        JobError: there is no tokenizer that can be loaded.
    """
    file = model_dir / "tokenizer.json"
    try:
        if file.exists() and not _cleans_up(model_dir):
            from tokenizers import Tokenizer

            fast = Tokenizer.from_file(str(file))
            return lambda token_ids: str(fast.decode(list(token_ids), skip_special_tokens=True))
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=trust_remote_code)
    # Both libraries raise nearly every type, Exception itself among them, for files they cannot read.
    except Exception as error:
        raise JobError(f"model.path: {model_dir} has no tokenizer that can be loaded: {error}") from error

    def decode(token_ids: Sequence[int]) -> str:
        return str(slow.decode(list(token_ids), skip_special_tokens=True))

    return decode


def _cleans_up(model_dir: Path) -> bool:
    """Whether the tokenizer's settings ask for changes to the text that only transformers makes."""
    config = model_dir / "tokenizer_config.json"
    return config.exists() and bool(json.loads(config.read_text()).get("clean_up_tokenization_spaces"))
