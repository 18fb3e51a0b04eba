"""Requests looked for by who asked and what they are called, among the records that are kept."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from kvmesh._native import Record
from kvmesh.errors import RequestError

MOST_CHARS: Final = 256
MOST_WORDS: Final = 8


class RecordSearch(msgspec.Struct, frozen=True):
    """What records must have: the `tenant`, None for any, and each word in lower case as a part of
    the request's id, its tenant's name or its worker's.
    """

    words: tuple[str, ...] = ()
    tenant: str | None = None

    def takes(self, request_id: str, tenant: str, worker: str) -> bool:
        """Return whether a request is looked for."""
        if self.tenant is not None and tenant != self.tenant:
            return False
        text = f"{request_id} {tenant} {worker}".lower() if self.words else ""
        return all(word in text for word in self.words)

    def among(self, records: Iterable[Record], limit: int) -> Iterator[Record]:
        """Return the first `limit` of the records that match. O(records)."""
        found = (
            one
            for one in records
            if self.takes(one.request_id.decode("latin-1"), one.tenant, one.decision.worker)
        )
        return islice(found, limit)


def search_for(find: str, tenant: str | None) -> RecordSearch:
    """Return the search for words between spaces. Raises `RequestError` for too many of them."""
    words = tuple(find.lower().split())
    if len(find) > MOST_CHARS or len(words) > MOST_WORDS:
        raise RequestError(
            f"find={find[:32]!r}…: use at most {MOST_WORDS} words and {MOST_CHARS} characters",
            param="find",
        )
    return RecordSearch(words, tenant)
