"""The commands that have many settings, without what they run: `--help` explains the settings, and
what serves is loaded when they are read.
"""

import sys
from typing import Annotated

from kvmesh.settings.picker import PickerSettings
from kvmesh.settings.roles import (
    MetaRouterSettings,
    RouterSettings,
    WorkerSettings,
)
from kvmesh.settings.types import Flat


def router(*, settings: Annotated[RouterSettings, Flat] | None = None) -> None:
    """Run one router replica of a bucket, or a router alone over the engines of --worker."""
    load_logs()
    from kvmesh.app.router.command import command  # noqa: PLC0415  not for --help

    command(settings or RouterSettings())


def picker(*, settings: Annotated[PickerSettings, Flat] | None = None) -> None:
    """Run an endpoint picker: a router of a bucket that gateways ask where a request goes."""
    load_logs()
    from kvmesh.app.router.picker_command import command  # noqa: PLC0415  not for --help

    command(settings or PickerSettings())


def meta_router(*, settings: Annotated[MetaRouterSettings, Flat] | None = None) -> None:
    """Run the front door over all buckets and replicas."""
    load_logs()
    from kvmesh.app.meta.command import command  # noqa: PLC0415  not for --help

    command(settings or MetaRouterSettings())


def worker(*, settings: Annotated[WorkerSettings, Flat]) -> None:
    """Run the sidecar that puts one engine's KV events and load on the mesh."""
    load_logs()
    from kvmesh.app.worker.command import command  # noqa: PLC0415  not for --help

    command(settings)


def load_logs() -> None:
    """Load structlog without rich: 4 MB, and a seventh of the time to start.

    structlog takes rich for tracebacks in colours; ours are text before it sees them.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # the form that makes an import fail
    try:
        import structlog.dev  # noqa: PLC0415  while rich cannot be loaded
    finally:
        del sys.modules["rich"]
    assert structlog.dev is not None
