"""Sidecars of decode workers that ask a prefill worker themselves: by which headers they are told.

Sources: llm-d-router, `pkg/common/routing` (both spellings are written with one value; a sidecar
reads the older one first) and `pkg/sidecar/proxy`; Dynamo, `lib/llm` (`HEADER_*` of `nvext`) and
its endpoint picker, read 2026-11-23.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from kvmesh.bounds import whole_number

Header = tuple[bytes, bytes]
Dialect = Literal["llm-d", "dynamo"]

INSTANCE: Final = "kvmesh/dynamo-instance/"
"""What a label begins with that tells a worker's instance id in Dynamo, decimal."""

_MOST_INSTANCE: Final = (1 << 63) - 1
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_PREFILLER: Final = (b"x-prefiller-host-port", b"x-llm-d-prefiller-host-port")
_WORKER_ID: Final = (b"x-worker-instance-id", b"x-dynamo-worker-instance-id")
_PREFILL_ID: Final = (b"x-prefill-instance-id", b"x-dynamo-prefill-instance-id")
_MODE: Final = b"x-dynamo-routing-mode"

RESERVED: Final = frozenset(
    {
        *_PREFILLER,
        *(b"x-encoder-hosts-ports", b"x-llm-d-encoder-hosts-ports"),
        *(b"x-kv-cache-source-host-port", b"x-llm-d-kv-cache-source-host-port"),
        b"x-data-parallel-host-port",
        *_WORKER_ID,
        *_PREFILL_ID,
        *(b"x-dp-rank", b"x-dynamo-dp-rank"),
        *(b"x-prefill-dp-rank", b"x-dynamo-prefill-dp-rank"),
        _MODE,
    }
)
"""What only who routes may say: a client that says it would choose whom a sidecar connects to."""


class Place(msgspec.Struct, frozen=True):
    """A worker, as far as sidecars name it."""

    url: str
    labels: tuple[str, ...] = ()

    def host_port(self) -> bytes | None:
        """Return `host:port`; None for a URL that has none."""
        try:
            parts = urlsplit(self.url)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            return None
        if not parts.hostname or port is None:
            return None
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{host}:{port}".encode()

    def instance(self) -> bytes | None:
        """Return its instance id in Dynamo; None where no label tells it."""
        found = _instances(self.labels)
        return next((b"%d" % one for one in found if one is not None), None)


class Sidecar(msgspec.Struct, frozen=True):
    """One dialect. `split` tells a decode worker's sidecar of the prefill worker, `whole` that it
    does all of it: None where a worker cannot be named. `always`: it must be told of every request.
    """

    name: Dialect
    split: Callable[[Place, Place], tuple[Header, ...] | None]
    whole: Callable[[Place], tuple[Header, ...] | None] = lambda _: ()
    always: bool = False


def _instances(labels: Iterable[str]) -> Iterable[int | None]:
    instances = (one.removeprefix(INSTANCE) for one in labels if one.startswith(INSTANCE))
    return (whole_number(one, 0, _MOST_INSTANCE) for one in instances)


def _llm_d(prefill: Place, decode: Place) -> tuple[Header, ...] | None:
    del decode
    where = prefill.host_port()
    return None if where is None else tuple((name, where) for name in _PREFILLER)


def _dynamo(prefill: Place, decode: Place) -> tuple[Header, ...] | None:
    first, second = prefill.instance(), decode.instance()
    if first is None or second is None:
        return None
    named = [*((name, second) for name in _WORKER_ID), *((name, first) for name in _PREFILL_ID)]
    return (*named, (_MODE, b"disaggregated"))


def _dynamo_whole(decode: Place) -> tuple[Header, ...] | None:
    own = decode.instance()
    if own is None:
        return None
    return (*((name, own) for name in _WORKER_ID), (_MODE, b"aggregated"))


SIDECARS: Final[dict[str, Sidecar]] = {
    "llm-d": Sidecar("llm-d", _llm_d),
    "dynamo": Sidecar("dynamo", _dynamo, _dynamo_whole, always=True),
}
