"""`kvmesh up` on the command line: its settings, and what reads those of its processes."""

from typing import Annotated

from kvmesh.app.ops.up import command
from kvmesh.cli import prepare
from kvmesh.settings.roles import UpSettings
from kvmesh.settings.types import Flat


def up(*, settings: Annotated[UpSettings, Flat] | None = None) -> None:
    """Serve a whole mesh on this machine: NATS, engines, routers, one front door."""
    command(settings or UpSettings(), prepare)
