"""What is done behind a stored snapshot: the journal is cut, and old objects are deleted."""

from collections.abc import Iterable
from functools import partial

from kvmesh.actors.kernel import Effect, Message
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.storage import (
    Deleted,
    DeleteObject,
    DeleteOrphans,
    ListObjects,
    ObjectsListed,
    PurgeJournal,
)
from kvmesh.actors.wishes import PendingEffects, ignore
from kvmesh.core.index.snapshot_manifest import Manifest
from kvmesh.core.journal.checkpoint_schedule import PREFIX as CHECKPOINT
from kvmesh.core.journal.replica import IndexReplica


class JournalCutter:
    """Deletes what no kept generation and no live replica needs. `purged` counts messages.

    Objects without a manifest are spared for `keep_s`: somebody may still be writing them.
    """

    def __init__(self, replica: IndexReplica, wishes: PendingEffects, keep_s: float) -> None:
        self.purged = 0
        self._replica = replica
        self._wishes = wishes
        self._keep_s = keep_s
        self._peers: dict[str, tuple[str, int]] = {}

    def receive(self, peer: RouterHeartbeat) -> None:
        """Note how far another replica has read the journal."""
        self._peers[peer.router] = (peer.created, peer.applied_sequence)

    def forget(self, router: str) -> None:
        """Drop a replica that is gone."""
        self._peers.pop(router, None)

    def clean_up(self, manifest: Manifest, *, may_purge: bool) -> Iterable[Effect]:
        """Clean up behind the generations of `manifest`, which is written."""
        wishes, created = self._wishes, self._replica.created
        if may_purge and (limit := self._limit(manifest, created)) > 0:
            yield wishes.make(partial(PurgeJournal, limit), self._on_purged)
        yield wishes.make(ListObjects, partial(self._on_listed, manifest))
        yield wishes.make(partial(DeleteOrphans, self._keep_s), ignore)

    def _limit(self, manifest: Manifest, created: str) -> int:
        """Return the last sequence of the stream `created` that nobody needs; 0 for none."""
        if manifest.generations[0].created != created:
            return 0
        peers = (applied for made, applied in self._peers.values() if made == created)
        return min(manifest.purge_limit(created), self._replica.applied_sequence, *peers)

    def _on_purged(self, answer: Message, now: float) -> Iterable[Effect]:
        del now
        if isinstance(answer, Deleted):
            self.purged += answer.count
        return ()

    def _on_listed(self, manifest: Manifest, answer: Message, now: float) -> Iterable[Effect]:
        """Delete objects the manifest does not name, unless somebody may still be writing them, or
        they are no snapshots.
        """
        del now
        if not isinstance(answer, ObjectsListed):
            return ()
        newest_s = max((one.modified_s for one in answer.objects), default=0.0)
        return [
            self._wishes.make(partial(DeleteObject, one.name), ignore)
            for one in answer.objects
            if one.name not in manifest.names()
            and one.modified_s < newest_s - self._keep_s
            and not one.name.startswith(CHECKPOINT)
        ]
