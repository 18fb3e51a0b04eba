"""Commands that have many settings, without what they run, as `kvmesh.entries` has the router's."""

from typing import Annotated

from kvmesh.entries import load_logs
from kvmesh.settings.types import Flat
from kvmesh_lab.mocker.settings import MockerSettings


def mocker(*, settings: Annotated[MockerSettings, Flat] | None = None) -> None:
    """Run a simulated engine: real HTTP, KV cache and events, no GPU."""
    load_logs()
    from kvmesh_lab.mocker.command import command  # noqa: PLC0415  not for --help

    command(settings or MockerSettings())
