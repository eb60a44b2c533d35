"""Prompts: read from any layout, checked wholly, tokenised by the model's template, stored with a content digest."""

from drumroll.data.prepare import check, prepare
from drumroll.data.prepared import DatasetInfo, PreparedDataset, describe_difference
from drumroll.data.prompts import tokenizer_digest

__all__ = ["DatasetInfo", "PreparedDataset", "check", "describe_difference", "prepare", "tokenizer_digest"]
