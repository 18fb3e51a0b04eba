"""What a meta-router tells the other sites of its own, and takes of what they tell."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import msgspec

from kvmesh.actors.kernel import Effect, Message, Publish, Wake
from kvmesh.actors.messages import BusMessage, Started, Tick
from kvmesh.actors.refusals import Refusals
from kvmesh.actors.wire import decode, encode, last_token
from kvmesh.bounds import Member, Name
from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.core.buckets.spill import BucketLoad
from kvmesh.core.sites.hot_beginnings import HotBeginnings
from kvmesh.core.sites.sites import Sites
from kvmesh.errors import CodecError

SUBJECT: Final = "kvmesh_sites"
"""First word of the subjects of digests: what a leaf node lets through, of no mesh's namespace."""

TELL_S: Final = 1.0
MOST_LOADS: Final = 32
MOST_HOT_BYTES: Final = 1 << 16
"""Of keys in a digest that is taken, whatever its sender's bound."""


class SiteDigest(Message, frozen=True):
    """A site's sign of life, each second on `kvmesh_sites.<site>.<door>`: whether it takes
    requests, how busy its buckets are, and keys of beginnings that are cached there, 8 bytes each.
    """

    site: Name
    door: Member
    ready: bool
    loads: Annotated[tuple[BucketLoad, ...], msgspec.Meta(max_length=MOST_LOADS)] = ()
    hot: Annotated[bytes, msgspec.Meta(max_length=MOST_HOT_BYTES)] = b""


def digest_subject(site: str = "*", door: str = "*") -> str:
    """Return where a meta-router's digests go."""
    return f"{SUBJECT}.{site}.{door}"


class SiteReporter:
    """Tells the other sites of this one, in `most_bytes` a second, and `sites` of them.

    `loads` and `ready` say how busy the buckets here are, and whether one takes requests.
    """

    def __init__(
        self,
        sites: Sites,
        door: str,
        loads: Callable[[float], Sequence[BucketLoad]],
        ready: Callable[[float], bool],
        most_bytes: int,
    ) -> None:
        self.name = "sites"
        self.hot = HotBeginnings()
        self.told_bytes = 0
        self.refused = Refusals()
        self._sites = sites
        self._door = door
        self._loads = loads
        self._ready = ready
        self._most_bytes = most_bytes

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case BusMessage(subject, data):
                return self._on_digest(subject, data, now)
            case Tick() | Started():
                return self._tell(now)
            case _:
                return ()

    def _tell(self, now: float) -> Iterable[Effect]:
        site, loads = self._sites.own, tuple(self._loads(now))[:MOST_LOADS]
        digest = SiteDigest(site, self._door, self._ready(now), loads)
        left = self._most_bytes - len(encode(digest))
        if left > 0:
            digest = msgspec.structs.replace(digest, hot=self.hot.take(left, now))
        data = encode(digest)
        self.told_bytes += len(data)
        return (Publish(digest_subject(site, self._door), data), Wake(TELL_S, Tick("tell")))

    def _on_digest(self, subject: str, data: bytes, now: float) -> Iterable[Effect]:
        """Take a digest; one that speaks for another than its subject is garbage."""
        try:
            digest = decode(data, SiteDigest)
            hot = unpack_hashes(digest.hot)
        except CodecError as error:
            return self.refused.note(subject, error, now)
        if subject != digest_subject(digest.site, last_token(subject)):
            return self.refused.note(subject, f"a digest of {digest.site!r}", now)
        if not self._sites.take(digest.site, digest.loads, hot, now, ready=digest.ready):
            return self.refused.note(subject, "no --peer-site names it", now)
        return ()
