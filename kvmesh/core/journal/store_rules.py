"""Whether the index may be stored as a snapshot, and the journal be cut behind it."""

from collections.abc import Collection
from typing import Final

from kvmesh.bounds import shown
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.members.worker_info import Trust

PATIENCE_S: Final = 60.0
"""Workers that claim events of which none ever comes hold up a snapshot no longer than that."""

_MOST_NAMED: Final = 3


class StoreRules:
    """Judges one replica's index for whoever writes snapshots of it.

    Not stored: an index that lacks what was not readable, or lacks live workers. Stored, but the
    journal is not cut: one with a worker in doubt, or the first after something unreadable was met.
    A worker that sends no events is never in doubt here: nothing of it is believed.
    """

    def __init__(self, replica: IndexReplica) -> None:
        self._replica = replica
        self._unread_before = 0
        self._unread_now = 0
        self._why_kept = ""
        self._held_s: float | None = None

    def why_not_store(self, now: float) -> str:
        """Return why the index must not be stored, "" if it may. O(workers)."""
        if formats := self._replica.unread.formats(now):
            met = ", ".join(map(str, sorted(set(formats.values()))))
            return f"journal records of {_named(formats)} have format {met}, which is not read"
        unknown = self._replica.recovery.unknown(now)
        waited = [worker for worker, since_s in unknown.items() if now < since_s + PATIENCE_S]
        if not waited:
            self._held_s = None
            return ""
        # From the first one on: names that nobody knew before come without end.
        self._held_s = now if self._held_s is None else self._held_s
        late = now >= self._held_s + PATIENCE_S
        return "" if late else f"nothing was read yet of {_named(waited)}"

    def freeze(self, now: float) -> None:
        """Note that the index is about to be stored as it is now. O(workers)."""
        self._unread_now = self._replica.unread.count
        self._why_kept = self._why_not_whole(now)

    def why_not_cut(self, now: float) -> str:
        """Return, for what was frozen and is stored now, why the journal must not be cut; "" if it
        may. O(workers).
        """
        readable = self._unread_now == self._unread_before
        self._unread_before = self._unread_now
        why = self._why_kept or self._why_not_whole(now)
        return why or ("" if readable else "records were met that are not read")

    def _why_not_whole(self, now: float) -> str:
        recovery = self._replica.recovery
        if unknown := recovery.unknown(now):
            return f"nothing was read yet of {_named(unknown)}"
        doubted = [
            worker
            for worker in self._replica.workers()
            if recovery.is_distrusted(worker) and recovery.trust(worker, now) is not Trust.APPROX
        ]
        return f"events are missing of {_named(doubted)}" if doubted else ""


def _named(workers: Collection[str]) -> str:
    """Return the first few names, and how many more there are."""
    names = ", ".join(shown(one) for one in sorted(workers)[:_MOST_NAMED])
    more = len(workers) - _MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names
