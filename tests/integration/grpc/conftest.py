"""gRPC servers on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from kvmesh.transport.grpc.health import HealthService
from kvmesh.transport.grpc.server import GrpcLimits, GrpcServer, GrpcStream


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name the event loops."""
    del config, item
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class Service:
    """A server with a few calls, and what they saw."""

    def __init__(self) -> None:
        self.serves: bool | None = True
        self.health = HealthService(lambda name: None if name else self.serves)
        self.streams: list[GrpcStream] = []
        self.resets: list[int] = []
        self.errors: list[tuple[str, str]] = []
        self.server = GrpcServer({})

    async def start(self, limits: GrpcLimits | None = None, ssl: object = None) -> GrpcServer:
        routes = {
            **self.health.routes,
            "/test/Echo": self.echo,
            "/test/Hold": self.hold,
            "/test/Broken": self.broken,
            "/test/Raises": self.raises,
        }
        self.server = GrpcServer(
            routes, limits, lambda error, path: self.errors.append((path, str(error)))
        )
        await self.server.start("127.0.0.1", 0, ssl=ssl)  # type: ignore[arg-type]
        return self.server

    def echo(self, stream: GrpcStream) -> None:
        """Send back what comes, at the speed at which it is taken."""

        def back(message: bytes) -> None:
            if not stream.send(message):
                stream.pause_reading()

        self.streams.append(stream)
        stream.on_message = back
        stream.on_resume = stream.resume_reading
        stream.on_half_close = stream.finish
        stream.on_reset = self.resets.append

    def hold(self, stream: GrpcStream) -> None:
        self.streams.append(stream)
        stream.on_reset = self.resets.append

    def broken(self, stream: GrpcStream) -> None:
        raise RuntimeError(f"broken for {stream.peer}")

    def raises(self, stream: GrpcStream) -> None:
        def fail(message: bytes) -> None:
            raise RuntimeError(f"raised for {message!r}")

        stream.on_message = fail


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Calls that are served once it is started."""
    made = Service()
    yield made
    made.health.close()
    await made.server.close()
