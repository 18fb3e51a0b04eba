"""A router of several processes: edges that share the port, one index process, their parent."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from kvmesh.app.front.front import public_url
from kvmesh.app.process.part import RouterPart, write_part
from kvmesh.app.process.running import DIE_WITH_PARENT, Stop
from kvmesh.app.process.supervisor import Child, ChildSpec, answers_ok
from kvmesh.app.prompts.isolation import isolation_of
from kvmesh.observe import get_logger
from kvmesh.settings.member_name import router_name
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.wire.sockets import listen

GRACE_S: Final = 10.0
"""What a child gets beyond --drain-s to end by itself."""

_POLL_S: Final = 0.1


class RouterProcesses:
    """Starts and supervises the parts of one router. They read the same command line."""

    def __init__(self, settings: RouterSettings) -> None:
        # What is wrong with it is told once here, and not by every part at each of its starts.
        isolation_of(settings.tenant, settings.admission.tenant_header)
        self._settings = settings
        self._router_id = router_name(settings.router_id)

    async def serve(self, stop: Stop) -> None:
        """Serve until `stop`, then let every part drain. Raises `TransportError` for the port."""
        settings, log = self._settings, get_logger()
        http = settings.http
        async with contextlib.AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvmesh-"))
            kept = listen(http.http_host, http.http_port, reuse_port=True, backlog=0)
            for sock in kept:
                stack.callback(sock.close)
            port = int(kept[0].getsockname()[1])
            url = public_url(http, port)
            await stack.enter_async_context(self._children(port, url, Path(folder)))
            if http.tls_cert is None:
                await wait_for_parts(f"http://{http.http_host}:{port}/v1/edges", stop)
            log.info("router serves", url=url, router=self._router_id, bucket=settings.bucket)
            await stop.wait()
            log.info("draining", processes=settings.http_processes + 1)

    @contextlib.asynccontextmanager
    async def _children(self, port: int, url: str, folder: Path) -> AsyncGenerator[None]:
        """Run the parts; at the end all of them drain at once, the index process ends last."""
        parts = [self._part("index", 0, port, url, folder)]
        parts += [
            self._part("edge", number, port, url, folder)
            for number in range(self._settings.http_processes)
        ]
        children = [self._child(part) for part in parts]
        try:
            for child in children:
                await child.start()
            yield
        finally:
            await asyncio.gather(*(child.stop() for child in children))

    def _part(self, role: str, number: int, port: int, url: str, folder: Path) -> RouterPart:
        return RouterPart(
            role="index" if role == "index" else "edge",
            number=number,
            router_id=self._router_id,
            port=port,
            url=url,
            socket=str(folder / "index.sock"),
        )

    def _child(self, part: RouterPart) -> Child:
        environment = os.environ | {DIE_WITH_PARENT: "1"} | write_part(part)
        spec = ChildSpec(part.name, sys.argv[1:])
        return Child(spec, environment, terminate_s=self._settings.http.drain_s + GRACE_S)


async def wait_for_parts(url: str, stop: Stop) -> None:
    """Return when `url`, which the index process answers through an edge, is served."""
    while not stop.requested and not await answers_ok(url):  # noqa: ASYNC110  another process's
        await asyncio.sleep(_POLL_S)
