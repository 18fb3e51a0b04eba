"""Names of members, buckets and namespaces: each is one word of a NATS subject."""

import os
import re
import socket

from kvmesh.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
LONGEST = 64


def check_name(name: str, place: str) -> str:
    """Return `name`. Raises `ConfigError` naming the `place` it stands at."""
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{place} {name!r}: use 1 to {LONGEST} letters, digits, dashes and underscores"
        )
    return name


def router_name(given: str) -> str:
    """Return --router-id, or one made from host and process. Raises `ConfigError`."""
    if given:
        return check_name(given, "--router-id")
    return name_of(f"{socket.gethostname()}-{os.getpid()}")


def name_of(text: str) -> str:
    """Return a name made of `text`, e.g. of a host name with dots; its end where it is long."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)[-LONGEST:]
