"""`kvmesh health`: whether a kvmesh process answers, as an exit code, for container health checks.

Docker runs it every few seconds beside each process, so it loads the standard library alone:
`kvmesh.__main__` calls it before the command line is loaded.
"""

import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

DEFAULT_PORT: Final = 8000
OK: Final = 200
SHOWN_BYTES: Final = 2_000
WILDCARDS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  not bound
"""Where to ask a process that listens everywhere."""


def command(url: str = "", *, ready: bool = False, timeout_s: float = 2.0) -> None:
    """Exit with 0 if a kvmesh process answers 200, else with 1 and the reason on standard error.

    Parameters
    ----------
    url
        What to ask: `http://host:port`, or with a path of its own. Default: this machine, at the
        port of KVMESH_HTTP_PORT (8000 without), by TLS with KVMESH_TLS_CERT.
    ready
        Ask /ready, whether requests may come, in place of /health, whether the process lives.
    timeout_s
        Seconds until it counts as not answering.

    """
    try:
        why = why_not(url or own_url(os.environ), "/ready" if ready else "/health", timeout_s)
    except ValueError as error:
        why = str(error)
    if why:
        sys.stderr.write(f"kvmesh: {why}\n")
        sys.exit(1)


def own_url(variables: Mapping[str, str]) -> str:
    """Return where a process with these variables listens. Raises `ValueError` if it does not."""
    port = variables.get("KVMESH_HTTP_PORT", str(DEFAULT_PORT))
    if port == "0":
        raise ValueError("KVMESH_HTTP_PORT is 0: this process has no port to ask")
    host = variables.get("KVMESH_HTTP_HOST", "")
    host = WILDCARDS.get(host, host)
    scheme = "https" if variables.get("KVMESH_TLS_CERT") else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def why_not(url: str, path: str, timeout_s: float) -> str:
    """Return why what is at `url` does not answer 200, "" if it does.

    `path` is asked where the URL has none. A certificate is not verified: the name in it is not
    that of the loopback address, and nothing is sent. Raises `ValueError` for no http URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{url!r}: write http://host:port")
    target = parts.path.rstrip("/") or path
    asked = f"{parts.scheme}://{parts.netloc}{target}"
    if parts.query:
        target = f"{target}?{parts.query}"
    connection = (
        HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=_unverified())
        if parts.scheme == "https"
        else HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    )
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read(SHOWN_BYTES)
    except (OSError, HTTPException) as error:
        return f"{asked}: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    if answer.status == OK:
        return ""
    return f"{asked}: {answer.status} {body.decode('utf-8', 'replace').strip()}"


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def read_words(words: Sequence[str]) -> tuple[str, bool] | None:
    """Return the URL and whether to ask /ready, if that is all the words say; None for others."""
    url, ready = "", False
    for word in words:
        if word == "--ready" and not ready:
            ready = True
        elif not word.startswith("-") and not url:
            url = word
        else:
            return None
    return url, ready
