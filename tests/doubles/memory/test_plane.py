import asyncio

import pytest

from kvmesh.errors import TransportError
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer


async def test_a_patient_plane_waits_for_its_server_and_says_so() -> None:
    server = MemoryServer()
    server.set_up(up=False)
    plane = MemoryPlane(server)
    reported: list[bool] = []
    plane.on_change(reported.append)

    connecting = asyncio.create_task(plane.connect(patient=True))
    await asyncio.sleep(0)
    waiting, before = plane.waiting(), plane.connected
    server.set_up(up=True)
    await connecting

    assert waiting == "waiting for the memory server"
    assert not before
    assert plane.connected
    assert plane.waiting() == ""
    assert reported == [True]


async def test_an_impatient_plane_raises_where_nobody_is() -> None:
    server = MemoryServer()
    server.set_up(up=False)

    with pytest.raises(TransportError, match="cannot connect"):
        await MemoryPlane(server).connect()


async def test_an_outage_is_told_and_its_end() -> None:
    server = MemoryServer()
    plane = MemoryPlane(server)
    await plane.connect()
    reported: list[bool] = []
    plane.on_change(reported.append)

    server.set_up(up=False)
    with pytest.raises(TransportError):
        await plane.journal("code")
    server.set_up(up=True)

    assert reported == [False, True]
