"""The address of a store, read from its URL."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from drumroll.errors import UserError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a store is."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """redis://host:port or rediss://host:port.

        Raises:
            UserError: anything else; the message shows no part of the URL but host and port.
        """
        wanted = "write redis://host:port, or rediss://host:port for TLS"
        # `from None`: the messages of urllib quote parts of the URL, which may be a password.
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise UserError(f"the store's URL cannot be read; {wanted}") from None
        if "@" in parts.netloc:
            where = f"{host or '?'}:{port or '?'}"
            raise UserError(f"the store's URL ({where}) holds credentials: they belong into secret files; {wanted}")
        if parts.scheme not in ("redis", "rediss") or not host or port is None:
            raise UserError(f"the store's URL has no known scheme, no host or no port; {wanted}")
        return cls(host, port, parts.scheme == "rediss")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
