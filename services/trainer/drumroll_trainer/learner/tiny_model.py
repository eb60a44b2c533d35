"""Makes a tiny Llama with a character tokenizer, in the layout of any model directory: for tests and for the examples.

One token is one character, so that text and tokens are the same thing to a reader. Equal arguments give equal weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from string import printable
from typing import Any

import torch

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
DEFAULT_CHARACTERS = "".join(sorted(set(printable) - set("\r\x0b\x0c")))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A template that a test may give: one line per message."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of the network; the defaults have about 0.12 million parameters."""

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    intermediate: int = 192
    max_tokens: int = 512
    initializer_range: float = 0.08
    """0.02 leaves so small a network on its plateau."""


def make_tiny_model(
    directory: Path,
    *,
    seed: int,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 2,
    intermediate: int | None = None,
    max_tokens: int = 512,
    initializer_range: float = 0.08,
    characters: str = DEFAULT_CHARACTERS,
    tie_embeddings: bool = False,
    dtype: str = "float32",
    chat_template: str | None = None,
) -> Path:
    """Write config.json, model.safetensors and a tokenizer into `directory`, which is made if need be.

    Ids: <pad> 0, <bos> 1, <eos> 2, then `characters` in their order. Returns `directory`.
    """
    shape = TinyShape(hidden, layers, heads, intermediate or 3 * hidden, max_tokens, initializer_range)
    directory.mkdir(parents=True, exist_ok=True)
    model = tiny_llama(seed=seed, shape=shape, vocabulary=3 + len(characters), tie_embeddings=tie_embeddings)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    _set_dtype(directory / "config.json", dtype)
    character_tokenizer(characters, max_tokens=max_tokens, chat_template=chat_template).save_pretrained(directory)
    return directory


def tiny_llama(*, seed: int, shape: TinyShape, vocabulary: int, tie_embeddings: bool = False) -> Any:
    """A LlamaForCausalLM with weights drawn from `seed`; the global random state is left as it was."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_tokens,
        tie_word_embeddings=tie_embeddings,
        initializer_range=shape.initializer_range,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def character_tokenizer(characters: str, *, max_tokens: int = 512, chat_template: str | None = None) -> Any:
    """A PreTrainedTokenizerFast of one token per character, whose decoding gives back the text exactly."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([PAD, BOS, EOS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def _set_dtype(config_file: Path, dtype: str) -> None:
    """Make config.json say what the safetensors hold, whatever the library wrote."""
    config = json.loads(config_file.read_text())
    config["dtype"] = dtype
    config.pop("torch_dtype", None)
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
