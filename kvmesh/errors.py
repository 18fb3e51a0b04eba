"""Every error kvmesh raises on purpose.

    KvMeshError
    ├── ConfigError      a setting, flag, file or environment variable is wrong
    ├── RequestError     a client's request is wrong (carries the HTTP status)
    │   └── UnattainableError  it would miss its targets at every worker
    ├── NoWorkerError    no worker may take this request now
    ├── CodecError       bytes that cannot be decoded
    │   └── NewerError       they are no garbage: a newer kvmesh wrote them
    └── TransportError   a peer did not answer, refused, or went away
        ├── SlowError        it did not answer in time: it may be busy, not dead
        ├── ApiServerError   Kubernetes' API server refused (carries the status)
        └── ConflictError    a compare-and-set lost against another writer

A message names the value, the place and the remedy.
"""

from typing import Final

MODEL_NOT_FOUND: Final = "model_not_found"
"""OpenAI's code for a model that nobody serves."""


class KvMeshError(Exception):
    """The root: catch it to catch everything kvmesh raises on purpose."""


class ConfigError(KvMeshError):
    """A setting is wrong; the message names the spelling that was used (flag, variable, file)."""


class RequestError(KvMeshError):
    """A client's request cannot be served as sent. `status` is the HTTP status to answer, `code` a
    word for programs, `retry_after_s` when to try again (0: not told), `final` that it is in vain.
    """

    retry_after_s: int = 0
    final: bool = False

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class UnattainableError(RequestError):
    """No worker would serve a request within its targets: until `retry_after_s` has gone by, or,
    where it is `final`, ever.
    """

    def __init__(self, message: str, *, retry_after_s: int = 0, final: bool = False) -> None:
        super().__init__(message, status=429, code="slo_unattainable")
        self.retry_after_s = retry_after_s
        self.final = final


class NoWorkerError(KvMeshError):
    """No worker may take this request now: none is alive, or all are excluded.

    `busy`: some would take it, were they not above a busy threshold; waiting may help.
    `unknown_model`: nobody serves the model it names, nor did before; waiting will not help.
    `unnamed`: mode direct, and the request names no worker; waiting will not help either.
    `wished`: some would take it but for the workers and labels that the request itself asks for.
    `unknown_worker`: the one worker it names was never there; waiting will not help.
    """

    def __init__(
        self,
        message: str,
        *,
        busy: bool = False,
        unknown_model: bool = False,
        unnamed: bool = False,
        wished: bool = False,
        unknown_worker: bool = False,
    ) -> None:
        super().__init__(message)
        self.busy = busy
        self.unknown_model = unknown_model
        self.unnamed = unnamed
        self.wished = wished
        self.unknown_worker = unknown_worker

    @property
    def lasting(self) -> bool:
        """Return whether waiting would not help, or is for admission to decide."""
        return self.busy or self.unknown_model or self.unnamed or self.unknown_worker


class CodecError(KvMeshError):
    """Bytes from outside do not decode; they are dropped and counted, never half applied."""


class NewerError(CodecError):
    """What is stored or sent was written by a newer kvmesh: it must be left as it is.

    `number` is the format that it has (`kvmesh.formats`), `version` the writer's, where it is told.
    """

    def __init__(self, message: str, *, number: int = 0, version: str = "") -> None:
        super().__init__(message)
        self.number = number
        self.version = version


class TransportError(KvMeshError):
    """A peer did not answer in time, refused, or went away."""


class SlowError(TransportError):
    """A peer did not answer in time: it may be busy, not dead."""


class ApiServerError(TransportError):
    """Kubernetes' API server refused a request. `status` is the HTTP status, or the code in what it
    sent instead of an event.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ConflictError(TransportError):
    """A compare-and-set lost: another writer changed the key first. Read again, then decide."""
