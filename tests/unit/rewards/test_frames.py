"""Messages between a replica and its reward processes."""

import os
import struct
from collections.abc import Iterator

import pytest
from drumroll_rollout.rewards.frames import FrameError, FrameTimeout, read_frame, write_frame


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        try:
            os.close(fd)
        except OSError:
            continue


def test_a_message_arrives_as_it_was_sent(pipe: tuple[int, int]) -> None:
    message = {"text": "\ud800 é", "numbers": [1, 2.5, None]}
    write_frame(pipe[1], message)
    assert read_frame(pipe[0], timeout_s=5) == message


def test_silence_is_a_timeout_and_ticks_meanwhile(pipe: tuple[int, int]) -> None:
    ticks: list[int] = []
    with pytest.raises(FrameTimeout):
        read_frame(pipe[0], timeout_s=0.1, tick=lambda: ticks.append(1), tick_s=0.02)
    assert ticks


def test_a_closed_pipe_is_told_on_both_sides(pipe: tuple[int, int]) -> None:
    os.close(pipe[1])
    with pytest.raises(FrameError) as caught:
        read_frame(pipe[0])
    assert caught.value.closed
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(FrameError, match="has gone"):
        write_frame(writer, {})
    os.close(writer)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack(">I", 2**31), "is over"),
        (struct.pack(">I", 3) + b"abc", "is not JSON"),
        (struct.pack(">I", 2) + b"[]", "is list, not a mapping"),
    ],
)
def test_what_is_no_frame_is_refused(pipe: tuple[int, int], data: bytes, message: str) -> None:
    os.write(pipe[1], data)
    with pytest.raises(FrameError, match=message):
        read_frame(pipe[0], timeout_s=5)
