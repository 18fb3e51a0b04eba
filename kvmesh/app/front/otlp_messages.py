"""How to speak to a collector, and what became of a batch."""

from typing import Literal

import msgspec


class CollectorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a collector is and how to speak to it.

    `proxy` is `http://[user:password@]host:port`, "" for none; `timeout_s` bounds each wait.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 10.0
    compression: Literal["none", "gzip", "deflate"] = "none"
    ca_file: str = ""
    client_certificate: str = ""
    client_key: str = ""
    proxy: str = ""


class Posted(msgspec.Struct, frozen=True, gc=False):
    """What became of a batch: `accepted`, else `error` says why not; then `again` says whether the
    same batch may be sent once more, in `wait_s` at the earliest. `rejected` of its spans were not
    taken all the same.
    """

    accepted: bool
    error: str = ""
    again: bool = False
    wait_s: float = 0.0
    rejected: int = 0


class ExportStatistics(msgspec.Struct, frozen=True):
    """Spans that wait now; counts since the start of those that a collector took, of those it
    rejected, and of those dropped: `full` for lack of room, `failed` because no attempt succeeded.
    """

    waiting: int
    exported: int
    rejected: int
    full: int
    failed: int
