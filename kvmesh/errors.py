"""Every error kvmesh raises on purpose.

    KvMeshError
    ├── ConfigError      a setting, flag, file or environment variable is wrong
    ├── RequestError     a client's request is wrong (carries the HTTP status)
    ├── NoWorkerError    no worker may take this request now
    ├── CodecError       bytes that cannot be decoded
    └── TransportError   a peer did not answer, refused, or went away
        └── ConflictError    a compare-and-set lost against another writer

A message names the value, the place and the remedy.
"""


class KvMeshError(Exception):
    """The root: catch it to catch everything kvmesh raises on purpose."""


class ConfigError(KvMeshError):
    """A setting is wrong; the message names the spelling that was used (flag, variable, file)."""


class RequestError(KvMeshError):
    """A client's request cannot be served as sent. `status` is the HTTP status to answer."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class NoWorkerError(KvMeshError):
    """No worker may take this request now: none is alive, or all are excluded.

    `busy`: some would take it, were they not above a busy threshold; waiting may help.
    """

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


class CodecError(KvMeshError):
    """Bytes from outside do not decode; they are dropped and counted, never half applied."""


class TransportError(KvMeshError):
    """A peer did not answer in time, refused, or went away."""


class ConflictError(TransportError):
    """A compare-and-set lost: another writer changed the key first. Read again, then decide."""
