"""The math reward: 1.0 where the last answer given equals an accepted one in value, else 0.0.

    the answer       what follows the last `####` on its line, or the last `\\boxed{…}`, whichever comes last; where
    there is neither,
                     the last number in the text (for an answer that is a number) or the last formula between dollar
                     signs
    equal            same text; or both numbers and the same value, exactly; else math-verify's judgement

math-verify's own time limits need the main thread's alarm signal; they are off, and the whole process has a hard
limit instead.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any

from drumroll_rollout.rewards.exact import accepted_answers
from drumroll_rollout.rewards.numbers import as_number, clean, last_number, same_number
from drumroll_rollout.rewards.rewards import Batch, Score

_MARKER = "####"
_MAX_CHARACTERS = 1000
_TOO_LARGE = re.compile(r"\d{30,}|\d{4,}\s*!|!\s*!|\^\s*\{?\s*[-+(]?\s*\d{4,}|\*\*|\^[^^]{0,40}\^")
"""Powers, towers and factorials whose evaluation takes for ever; nothing of the kind is ever an expected answer."""
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def boxed(text: str) -> tuple[int, str] | None:
    """(where it begins, content) of the last `\\boxed{…}` with balanced braces. Pure."""
    start = text.rfind("\\boxed")
    while start >= 0:
        content = _braced(text, start + len("\\boxed"))
        if content is not None:
            return start, content
        start = text.rfind("\\boxed", 0, start)
    return None


def _braced(text: str, start: int) -> str | None:
    opening = start + len(text[start:]) - len(text[start:].lstrip())
    if text[opening : opening + 1] != "{":
        return None
    depth = 0
    for index in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[opening + 1 : index].strip()
    return None


def marked_answer(text: str) -> str | None:
    """What follows the last marker, or is in the last box, whichever comes last; None: there is neither. Pure."""
    marker = text.rfind(_MARKER)
    box = boxed(text)
    if box is not None and box[0] > marker:
        return box[1]
    if marker < 0:
        return None
    line = text[marker + len(_MARKER) :].lstrip("#").split("\n", 1)[0]
    return line.strip()


def final_answer(text: str, *, number: bool) -> str | None:
    """The answer of a completion; `number`: the expected answer is one. Pure."""
    marked = marked_answer(text)
    if marked is not None:
        return marked or None
    if number:
        return last_number(text)
    formulas = _FORMULA.findall(text)
    return next((part.strip() for part in formulas[-1] if part), None) if formulas else None


def is_right(completion: str, accepted: Sequence[str]) -> bool:
    """Whether a completion's answer equals one of the accepted ones.

    Raises:
        Exception: the grader failed, as on an expected answer of 1/0; that is no judgement.
    """
    for gold_text in accepted:
        gold = marked_answer(gold_text) or gold_text.strip()
        answer = final_answer(completion, number=as_number(gold) is not None)
        if answer is not None and _equal(gold, answer):
            return True
    return False


def _equal(gold: str, answer: str) -> bool:
    if _normalised(gold) == _normalised(answer):
        return True
    gold_number = as_number(gold)
    for part in _sides(answer):
        number = as_number(part)
        if gold_number is not None and number is not None:
            return same_number(gold_number, number)
    if len(answer) > _MAX_CHARACTERS or _TOO_LARGE.search(answer) or not answer.strip():
        return False
    return _verified(gold, clean(answer))


def _sides(answer: str) -> list[str]:
    """The answer, and what stands behind its last equals sign (`x = 5`, `6*7 = 42`)."""
    return [answer, answer.rpartition("=")[2]] if "=" in answer else [answer]


def _normalised(text: str) -> str:
    return re.sub(r"\s+", "", clean(text)).rstrip(".").strip("$")


def _verified(gold: str, answer: str) -> bool:
    import math_verify

    def parsed(text: str) -> Any:
        return math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=0, raise_on_error=True)

    return bool(math_verify.verify(parsed(gold), parsed(answer), timeout_seconds=0, raise_on_error=True))


class MathReward:
    """1.0 or 0.0."""

    name = "math"
    keeps_processes = False

    def __init__(self) -> None:
        import math_verify

        # It warns at every call that its own limits are off.
        logging.getLogger(math_verify.__name__).setLevel(logging.ERROR)

    def score(self, batch: Batch) -> Sequence[Score]:
        return [self._score(text, row["answer"]) for text, row in zip(batch.completions, batch.inputs, strict=True)]

    @staticmethod
    def _score(completion: str, answer: Any) -> Score:
        return 1.0 if is_right(completion, accepted_answers(answer)) else 0.0, {}
