"""`python -m drumroll.ping --port=6379 --user=scheduler --password-file=F`: exit 0 where the store answers PONG.

A probe runs all the time beside the store, so this imports next to nothing. It asks on the loopback interface, from
within the store's pod; with --ca over TLS, where the certificate is checked but not the name.
"""

import argparse
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

_TIMEOUT_S = 8.0


def command(*words: str) -> bytes:
    """A command as the store reads it."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word.encode()
        parts.append(f"${len(data)}\r\n".encode() + data + b"\r\n")
    return b"".join(parts)


def ping(port: int, *, user: str, password: str, ca: str | None = None, timeout_s: float = _TIMEOUT_S) -> str:
    """What the store answers to PING, such as +PONG or -LOADING.

    Raises:
        OSError: it does not answer.
    """
    with (
        socket.create_connection(("localhost", port), timeout_s) as plain,
        _wrapped(plain, ca) as link,
        link.makefile("rb") as answers,
    ):
        link.sendall(command("AUTH", user, password))
        signed_in = answers.readline().decode("utf-8", "replace").strip()
        if signed_in != "+OK":
            return signed_in
        link.sendall(command("PING"))
        return answers.readline().decode("utf-8", "replace").strip()


def _wrapped(plain: socket.socket, ca: str | None) -> socket.socket:
    if ca is None:
        return plain
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    return context.wrap_socket(plain)


def main(arguments: Sequence[str]) -> int:
    """Exit code of the probe; what is wrong goes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m drumroll.ping", description="Ask the store whether it is there.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", default="scheduler")
    parser.add_argument("--password-file", type=Path, required=True)
    parser.add_argument("--ca", help="authorities of its certificate; without, no TLS")
    values = parser.parse_args(arguments)
    try:
        password = values.password_file.read_text().strip()
        answer = ping(values.port, user=values.user, password=password, ca=values.ca)
    except OSError as error:
        sys.stderr.write(f"the store at port {values.port} does not answer: {error}\n")
        return 1
    if answer == "+PONG":
        return 0
    sys.stderr.write(f"the store at port {values.port} answers {answer[:200]}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
