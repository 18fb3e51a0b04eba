"""The routes between nats-servers, through proxies that cut, hold, slow down and lose."""

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Final

from tests.chaos.process import fixed_ports

CHUNK: Final = 65_536
RESEND_S: Final = (0.2, 0.8)
"""How long a lost packet keeps those behind it waiting: TCP sends it again after so long."""


class RouteProxy:
    """The way from one server to another's route port; all of it belongs to one event loop.

    `delay_s` is what each chunk takes, `loss` the chance that one is lost and sent again.
    """

    def __init__(self, port: int, target: int, rng: random.Random) -> None:
        self.port = port
        self.delay_s = 0.0
        self.loss = 0.0
        self._target = target
        self._rng = rng
        self._cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        """Break every connection, and each new one at once."""
        self._cut = True
        self._abort()

    def hold(self) -> None:
        """Keep every byte back until `heal`, as a network without a way does: TCP repeats it."""
        self._flows.clear()

    def heal(self) -> None:
        """Let connections come and bytes pass again; `delay_s` and `loss` stay."""
        self._cut = False
        self._flows.set()

    def _abort(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = {writer}
        self._open |= both
        try:
            await self._flows.wait()
            if not self._cut:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
                both.add(far_writer)
                self._open.add(far_writer)
                await self._pump_both((reader, far_writer), (far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # The server is down, or the mesh ends.
        finally:
            self._open -= both
            for one in both:
                one.transport.abort()

    async def _pump_both(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Pass bytes on until either side ends."""
        pumps = [asyncio.create_task(self._pump(*way)) for way in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._flows.wait()
            lost = self._rng.random() < self.loss
            await asyncio.sleep(self.delay_s + (self._rng.uniform(*RESEND_S) if lost else 0.0))
            writer.write(data)
            await writer.drain()


class Routes:
    """A proxy for every ordered pair of servers, in a thread of their own.

    `urls(a)` is what server `a` is to be configured with. Servers are parted, and brought together
    again, from all others or from some: a heal of one pair leaves a partition of one side.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        count = len(ports)
        rng = random.Random(0)
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
        free = fixed_ports(len(pairs))
        self._proxies = {
            pair: RouteProxy(port, ports[pair[1]], rng)
            for pair, port in zip(pairs, free, strict=True)
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="routes", daemon=True)

    def start(self) -> None:
        self._thread.start()
        for proxy in self._proxies.values():
            self._wait(proxy.start())

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def urls(self, server: int) -> list[str]:
        return [
            f"nats://127.0.0.1:{proxy.port}"
            for (source, _), proxy in self._proxies.items()
            if source == server
        ]

    def cut(self, server: int, others: Sequence[int] = ()) -> None:
        """Part a server from all others, or from some: connections break."""
        self._each(self._between(server, others), RouteProxy.cut)

    def hold(self, server: int, others: Sequence[int] = ()) -> None:
        """Part a server from all others, or from some: connections stay and nothing passes."""
        self._each(self._between(server, others), RouteProxy.hold)

    def slow(self, delay_s: float) -> None:
        """Let all between servers take that long."""

        def slow(proxy: RouteProxy) -> None:
            proxy.delay_s = delay_s

        self._each(self._proxies.values(), slow)

    def lose(self, chance: float) -> None:
        """Lose that share of the chunks between servers at the first sending."""

        def lose(proxy: RouteProxy) -> None:
            proxy.loss = chance

        self._each(self._proxies.values(), lose)

    def heal(self, server: int | None = None, others: Sequence[int] = ()) -> None:
        """Bring all together, or a server and all others, or some; slow routes stay slow."""
        proxies = self._proxies.values() if server is None else self._between(server, others)
        self._each(proxies, RouteProxy.heal)

    def _between(self, server: int, others: Sequence[int]) -> Iterator[RouteProxy]:
        for pair, proxy in self._proxies.items():
            if server in pair and (not others or (set(pair) - {server}) <= set(others)):
                yield proxy

    def _each(self, proxies: Iterable[RouteProxy], do: Callable[[RouteProxy], None]) -> None:
        async def each() -> None:
            for proxy in proxies:
                do(proxy)

        self._wait(each())

    async def _end(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()
        pumps = asyncio.all_tasks() - {asyncio.current_task()}
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        await asyncio.sleep(0)

    def _wait(self, job: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(job, self._loop).result(10.0)
