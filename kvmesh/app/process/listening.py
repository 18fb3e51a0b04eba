"""What to do about a port that cannot be listened on, in the words of the setting that names it."""

import contextlib
import errno
import socket
from collections.abc import Generator

from kvmesh.errors import ConfigError, TransportError


@contextlib.contextmanager
def naming(flag: str, host_flag: str) -> Generator[None]:
    """Raise `ConfigError` with the remedy where what is done within cannot listen.

    `flag` is the setting of the port, `host_flag` that of the address.
    """
    try:
        yield
    except TransportError as error:
        cause = error.__cause__
        match getattr(cause, "errno", None):  # of an OSError, and of ZeroMQ's own
            case errno.EADDRINUSE:
                remedy = f"stop the process that has it (`ss -ltnp`), or name another port: {flag}"
            case errno.EACCES:
                remedy = f"ports below 1024 need a privilege; name a higher one: {flag}"
            case _:
                remedy = f"name an address of this machine: {host_flag}"
        raise ConfigError(f"{error}; {remedy}") from error


def why_taken(host: str, port: int) -> str:
    """Return why a port cannot be listened on now, "" where it can."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
