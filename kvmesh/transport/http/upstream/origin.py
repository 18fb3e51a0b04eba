"""Where an upstream listens."""

from urllib.parse import urlsplit

import msgspec

from kvmesh.errors import ConfigError


class Origin(msgspec.Struct, frozen=True):
    """Scheme, host and port of an upstream; `authority` is its Host header."""

    url: str
    host: str
    port: int
    authority: bytes
    secure: bool

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Return the origin of `http[s]://host[:port]`. Raises `ConfigError` for anything else."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"upstream {url!r}: {error}") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"upstream {url!r} is not of the form http://host:port")
        if parts.path.strip("/") or parts.query or parts.username is not None:
            raise ConfigError(f"upstream {url!r}: only scheme, host and port are allowed")
        secure = parts.scheme == "https"
        return cls(
            url=url,
            host=parts.hostname,
            port=port or (443 if secure else 80),
            authority=parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii"),
            secure=secure,
        )
