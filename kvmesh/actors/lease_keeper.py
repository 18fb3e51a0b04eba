"""Takes and renews a lease kept as a key with expiry, for the actor that needs it."""

from collections.abc import Callable, Iterable
from functools import partial

from kvmesh.actors.kernel import Effect, Fields, Log, Message
from kvmesh.actors.storage import DeleteKey, Failed, KeyRead, KeyWritten, ReadKey, WriteKey
from kvmesh.actors.wishes import PendingEffects, ignore
from kvmesh.core.journal.lease import TTL_S, Lease


class LeaseKeeper:
    """One request at a time; an unknown outcome is settled by reading the key back.

    While another holds the lease its key is read, and written once it is free: one request a turn.
    """

    def __init__(self, key: str, holder: str, wishes: PendingEffects) -> None:
        self.lease = Lease(holder)
        self._key = key
        self._wishes = wishes
        self._asking = False

    def renew(self, now: float, granted: Callable[[float], Iterable[Effect]]) -> Iterable[Effect]:
        """Take the lease or renew it; `granted(now)` goes on when that succeeded."""
        if self._asking:
            return ()
        if self.lease.is_others:
            return self._check(granted)
        return self._write(now, granted, over=False)

    def _check(self, granted: Callable[[float], Iterable[Effect]]) -> Iterable[Effect]:
        self._asking = True

        def on_read(answer: Message, answered_s: float) -> Iterable[Effect]:
            self._asking = False
            return self._found(answer, answered_s, granted, over=False)

        return (self._wishes.make(partial(ReadKey, self._key), on_read),)

    def _found(
        self,
        answer: Message,
        now: float,
        granted: Callable[[float], Iterable[Effect]],
        *,
        over: bool,
    ) -> Iterable[Effect]:
        """Take what stands in the key; write it if that makes it free, unless it was `over`."""
        lease = self.lease
        if not isinstance(answer, KeyRead):
            lease.lost()
            return ()
        others = lease.is_others
        updates = lease.refused(answer.value, answer.revision, now)
        # At once: who writes garbage each second would be first each time.
        free = lease.expected is not None or (others and answer.value is None)
        retry = self._write(now, granted, over=True) if free and not over else ()
        if not updates:
            return retry
        fields: Fields = {"key": self._key, "bytes": len(answer.value or b"")}
        warning = Log("error", "lease names no holder, it is free after its time", fields)
        return (warning, *retry)

    def _write(
        self, now: float, granted: Callable[[float], Iterable[Effect]], *, over: bool
    ) -> Iterable[Effect]:
        """Write the key; `over`: for the second time in a turn, over what stood there."""
        self._asking = True
        lease = self.lease
        holder, expected = lease.holder.encode(), lease.expected

        def on_written(answer: Message, answered_s: float) -> Iterable[Effect]:
            self._asking = False
            match answer:
                case KeyWritten(_, revision):
                    before = lease.overridden
                    lease.granted(revision, now)
                    goes_on = granted(answered_s)
                    if lease.overridden == before:
                        return goes_on
                    return (Log("error", "lease written over", {"key": self._key}), *goes_on)
                case Failed(_, _, True):
                    self._asking = True
                    return (self._wishes.make(partial(ReadKey, self._key), on_refused),)
                case _:
                    self._asking = True
                    return (self._wishes.make(partial(ReadKey, self._key), on_found),)

        def on_refused(answer: Message, answered_s: float) -> Iterable[Effect]:
            self._asking = False
            return self._found(answer, answered_s, granted, over=over)

        def on_found(answer: Message, answered_s: float) -> Iterable[Effect]:
            del answered_s
            self._asking = False
            if isinstance(answer, KeyRead):
                lease.found(answer.value, answer.revision)
            return ()

        write = self._wishes.make(
            lambda token: WriteKey(self._key, holder, expected, token, ttl_s=TTL_S), on_written
        )
        return (write,)

    def release(self) -> Iterable[Effect]:
        """Let another have the lease now, not when it expires."""
        revision = self.lease.taken
        if revision is None:
            return ()
        self.lease.lost()
        delete = partial(DeleteKey, self._key, revision)
        return (self._wishes.make(delete, ignore),)
