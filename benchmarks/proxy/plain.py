"""kvmesh's data plane alone, forwarding round robin: what a hop costs before any routing.

`python -m benchmarks.proxy.plain PORT URL…`
"""

import asyncio
import gc
import itertools
import sys

import uvloop

from kvmesh.errors import KvMeshError
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import Outcome, Target
from kvmesh.transport.http.openai import find_endpoint, parse_request
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.http.wire.sockets import raise_open_files_limit


class RoundRobin:
    """The plan: the next worker."""

    __slots__ = ("_targets",)

    def __init__(self, targets: "itertools.cycle[Target]") -> None:
        self._targets = targets

    def next_target(self) -> Target:
        return next(self._targets)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        del failure
        return True

    def on_head(self, status: int) -> Headers:
        del status
        return ((b"x-kvmesh-worker", b"w0"),)

    def on_tokens(self, tokens: int) -> None:
        del tokens

    def on_finish(self, outcome: Outcome) -> None:
        del outcome


async def main() -> None:
    raise_open_files_limit()
    targets = itertools.cycle([Target(url) for url in sys.argv[2:]])
    pool = UpstreamPool()

    def handle(exchange: Exchange) -> None:
        request = exchange.request
        try:
            endpoint = find_endpoint(request.method, request.path, passthrough=True)
            if request.body:
                parse_request(request.body, endpoint)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))
            return
        Forward(exchange, pool).begin(RoundRobin(targets))

    server = HttpServer(handle)
    await server.start("127.0.0.1", int(sys.argv[1]))
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
