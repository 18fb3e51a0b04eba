"""What it takes to be let in at a NATS server, and which refusals are for good."""

import contextlib
import re
import ssl
from base64 import b64encode
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any, Final

import nats.errors
from nacl.signing import SigningKey

from kvmesh.errors import ConfigError, TransportError
from kvmesh.transport.nats.trust.nkey import read_seed, token_in_creds, user_key

NEEDED_PAYLOAD: Final = 512 * 1024
"""Snapshot chunks are this long, journal messages and bookings shorter."""

FATAL_ERRORS: Final = (
    "authorization",
    "authentication",
    "user credentials",
    "certificate",
    "account",
)
"""What trying again will not cure at the first connect."""

_DENIED: Final = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)


def check_files(creds: Path | None, tls_ca: Path | None, server: str) -> None:
    """Raise `ConfigError` for one of these files that is not there."""
    for path in (creds, tls_ca):
        if path is not None and not path.is_file():
            raise ConfigError(f"{path}: no such file, needed to log in to {server}")


def login_arguments(creds: Path | None, tls_ca: Path | None) -> dict[str, Any]:
    """Return `NatsClient.connect`'s arguments for these files.

    Raises `ConfigError` or `OSError` for an unusable file. Credentials are read again for each
    login, since a token may be renewed.
    """
    arguments: dict[str, Any] = {}
    if tls_ca is not None:
        arguments["tls"] = ssl.create_default_context(cafile=str(tls_ca))
    if creds is not None:
        arguments["signature_cb"] = partial(_sign, creds)
        if token_in_creds(creds.read_bytes()) is None:
            arguments["nkey"] = user_key(bytes(_key(creds).verify_key))
        else:
            arguments["user_jwt_cb"] = partial(_token, creds)
    return arguments


def _key(creds: Path) -> SigningKey:
    key = read_seed(creds)
    assert key is not None
    return key


def _sign(creds: Path, nonce: str) -> bytes:
    with _tried_again():
        return b64encode(_key(creds).sign(nonce.encode()).signature)


def _token(creds: Path) -> bytes:
    with _tried_again():
        return token_in_creds(creds.read_bytes()) or b""


@contextlib.contextmanager
def _tried_again() -> Generator[None]:
    """Raise what nats-py takes for an attempt that failed; with any other it gives up for good."""
    try:
        yield
    except (ConfigError, OSError) as error:
        raise nats.errors.Error(str(error)) from error


@contextlib.contextmanager
def config_errors(server: str) -> Generator[None]:
    """Raise as `ConfigError` what the client says of an unusable URL, key or certificate."""
    try:
        yield
    except (nats.errors.Error, OSError, ValueError) as error:
        raise ConfigError(f"NATS at {server}: {error}") from error


def check_payload(max_payload: int, server: str) -> None:
    """Raise `ConfigError` for a server whose messages are too short, in bytes."""
    if max_payload < NEEDED_PAYLOAD:
        raise ConfigError(
            f"NATS at {server} takes messages of {max_payload} bytes at most: set max_payload to "
            f"{NEEDED_PAYLOAD} or more in its configuration"
        )


def no_server(server: str, error: str) -> TransportError:
    """Return what to raise when the first connect is given up; `error` is the last attempt's."""
    return TransportError(
        f"cannot connect to NATS at {server}: {error or 'no answer'}; "
        "start it (nats-server -js, or kvmesh up) or name it with --nats-url"
    )


def is_fatal(error: str) -> bool:
    """Return whether the first connect should give up at once: a login that will not improve.

    A TLS handshake that is cut short is no refusal: so ends one with a server that goes down.
    """
    lower = error.lower()
    if "[ssl:" in lower and "eof" not in lower:
        return True
    return any(word in lower for word in FATAL_ERRORS)


def denied_subject(error: str) -> str:
    """Return the subject that this user may not publish to, in lower case; else ""."""
    found = _DENIED.search(error)
    return found[1].lower() if found else ""


def hide_password(urls: str) -> str:
    """Return the server list without the users and passwords in it, for logs and errors."""
    return ",".join(
        f"{scheme}{separator}{rest.rpartition('@')[2]}"
        for scheme, separator, rest in (url.strip().rpartition("://") for url in urls.split(","))
    )
