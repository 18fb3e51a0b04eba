"""Whether other replicas hold the same index at the same place of the journal."""

from collections.abc import Iterable

from kvmesh.actors.kernel import Effect, Fields, Log
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.core.journal.digest import Claim
from kvmesh.core.journal.replica import IndexReplica


class PeerDigests:
    """Compares what other replicas claim of their indexes; `mismatches` counts what contradicts.

    A contradiction is acted on once in `pause_s`: to load the index anew takes its time.
    """

    def __init__(self, replica: IndexReplica, pause_s: float) -> None:
        self.mismatches = 0
        self._replica = replica
        self._pause_s = pause_s
        self._acted_s: float | None = None

    def compare(self, peer: RouterHeartbeat, now: float) -> Iterable[Effect]:
        """Return a line when the index has to be loaded anew, since a peer contradicts it."""
        claim = Claim(peer.applied_sequence, peer.digest, peer.scope)
        wrong = self._replica.compare(peer.router, peer.created, claim)
        if wrong is None:
            return ()
        self.mismatches += 1
        if self._acted_s is not None and now < self._acted_s + self._pause_s:
            return ()
        self._acted_s = now
        fields: Fields = {
            "peer": peer.router,
            "sequence": wrong.sequence,
            "created": peer.created,
        }
        return (Log("error", "replicas disagree about the index", fields),)
