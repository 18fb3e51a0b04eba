"""A mesh of the demonstration's own, as `kvmesh up` starts it, on ports that are free."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from kvmesh.app.ops.mesh_place import refuse_taken_ports
from kvmesh.app.ops.mesh_plan import mesh_ports
from kvmesh.app.ops.mesh_start import start_mesh
from kvmesh.app.process.supervisor import Child, wait_for_ready
from kvmesh.app.views.ask import ask_overview
from kvmesh.bounds import counted
from kvmesh.errors import ConfigError, TransportError
from kvmesh.settings.roles import UpSettings

FIRST_BASE: Final = 20_000
LAST_BASE: Final = 32_000
"""Below the ports that Linux gives to clients: what is free now stays so."""

TRIES: Final = 50
READY_S: Final = 60.0
POLL_S: Final = 0.1


@contextlib.asynccontextmanager
async def own_mesh(settings: UpSettings) -> AsyncGenerator[tuple[str, list[Child]]]:
    """Run a mesh; yield its front door's URL and its processes when every worker may be given
    requests.

    Ports and data directory of `settings` do not count. Raises `TransportError`.
    """
    with tempfile.TemporaryDirectory(prefix="kvmesh-demo-") as folder:
        chosen = replace(settings, http_port=free_base(settings), data_dir=Path(folder))
        async with contextlib.AsyncExitStack() as stack:
            _, _, children = await start_mesh(chosen, stack)
            await wait_for_ready(children)
            url = f"http://127.0.0.1:{chosen.http_port}"
            await _wait_for_workers(url, settings.engines)
            yield url, children


def free_base(settings: UpSettings) -> int:
    """Return a port for the front door such that all others of the mesh are free, too.

    Raises `ConfigError` when none is found.
    """
    rng = Random()  # noqa: S311  no secret
    for _ in range(TRIES):
        base = rng.randrange(FIRST_BASE, LAST_BASE)
        with contextlib.suppress(ConfigError):
            refuse_taken_ports(mesh_ports(replace(settings, http_port=base)), "kvmesh demo")
            return base
    raise ConfigError(
        f"kvmesh demo: no free ports found from {FIRST_BASE} to {LAST_BASE} for {settings.engines} "
        f"engines on {socket.gethostname()}; end other meshes, or name a running one with --url"
    )


async def _wait_for_workers(url: str, workers: int) -> None:
    usable = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while True:
                usable = sum(one.usable for one in (await ask_overview(url)).workers)
                if usable >= workers:
                    return
                await asyncio.sleep(POLL_S)
    raise TransportError(
        f"{url}: {usable} of {counted(workers, 'worker')} usable after {READY_S:.0f} s"
    )
