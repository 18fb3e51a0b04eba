"""FastStream on the process's own connection. It is loaded when the first command comes or goes."""

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, cast

from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

GRACEFUL_S: Final = 5.0


class Lent:
    """A client as FastStream sees it: what FastStream subscribes to is heard already.

    `consumers` are what it would have called with the messages of each subject.
    """

    def __init__(self, client: Client, received: Mapping[str, Subscription]) -> None:
        self.consumers: dict[str, Callable[[Msg], Awaitable[None]]] = {}
        self._client = client
        self._subscribed = received

    async def subscribe(
        self,
        subject: str,
        *,
        cb: Callable[[Msg], Awaitable[None]],
        **_: object,
    ) -> Subscription:
        """Return the subscription that there is."""
        self.consumers[subject] = cb
        return self._subscribed[subject]

    def __getattr__(self, name: str) -> object:
        """Return all else as the client has it."""
        return getattr(self._client, name)


class SharedBroker(NatsBroker):
    """FastStream's broker on a connection that is somebody else's to open and close.

    `handle` answers what comes on the subjects of `received`.
    """

    def __init__(
        self,
        client: Client,
        received: Mapping[str, Subscription],
        handle: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        super().__init__(apply_types=False, logger=None, graceful_timeout=GRACEFUL_S)
        self.lent = Lent(client, received)
        for subject in received:
            # FastStream swallows what a decoder raises, so the asker would wait for nothing.
            self.subscriber(subject, decoder=_body)(handle)

    async def _connect(self) -> Client:
        client = cast("Client", self.lent)
        self.config.connect(client)
        return client

    async def consume(self, subject: str, message: Msg) -> None:
        """Carry out the command that came on `subject`, and answer it."""
        await self.lent.consumers[subject](message)

    async def send(self, subject: str, command: bytes, timeout_s: float) -> bytes:
        """Return the answer to a command. Raises `nats.errors.Error`, `TimeoutError`."""
        reply = await self.request(command, subject, timeout=timeout_s)
        return reply.body

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """End the subscriptions, waiting up to 5 s for the commands under way."""
        # FastStream would drain and close what it believes to be its own connection.
        self._connection = None
        await super().stop(exc_type, exc_val, exc_tb)


async def _body(message: NatsMessage) -> bytes:
    return message.body
