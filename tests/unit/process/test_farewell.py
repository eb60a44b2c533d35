"""Last words: short, readable, never in the way."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumroll.farewell import MOST_BYTES, leave_report, leave_words, shortened


def test_without_a_file_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRUMROLL_TERMINATION_FILE", raising=False)
    leave_words("nobody listens")
    monkeypatch.setenv("DRUMROLL_TERMINATION_FILE", str(tmp_path / "log"))
    leave_words("data.train: no such file")
    assert (tmp_path / "log").read_text() == "data.train: no such file"


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leave_words("x", file=tmp_path / "none" / "log")
    assert "cannot be written" in caplog.text


def test_a_long_message_keeps_its_cause_k12(tmp_path: Path) -> None:
    text = "reward.py: " + "漢字" * 2500 + "\x00 ValueError: the root cause"
    leave_words(text, file=tmp_path / "log")
    data = (tmp_path / "log").read_bytes()
    assert len(data) <= MOST_BYTES
    words = data.decode()
    assert words.startswith("reward.py: ")
    assert words.endswith(" ValueError: the root cause")
    assert "\x00" not in words


@given(st.text(), st.integers(16, 4096))
def test_shortened_text_is_text_of_the_given_size(text: str, most: int) -> None:
    cut = shortened(text, most=most)
    assert len(cut.encode()) <= most
    assert "\x00" not in cut
    if len(text.encode("utf-8", "replace")) <= most:
        assert cut == text.replace("\x00", "").encode("utf-8", "replace").decode()


@given(text=st.text(max_size=6000))
def test_a_report_is_json_of_bounded_size_whatever_its_reason(text: str, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.mktemp("report") / "log"
    leave_report({"phase": "Failed", "reason": text, "step": 3}, file=file)
    assert len(file.read_bytes()) <= MOST_BYTES
    assert json.loads(file.read_text())["step"] == 3
