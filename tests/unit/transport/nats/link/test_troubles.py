"""When a trouble begins and ends."""

import asyncio

import pytest

from kvmesh.observe import get_logger
from kvmesh.transport.nats.link import troubles
from kvmesh.transport.nats.link.troubles import Troubles


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "SURE_S", 0.05)
    monkeypatch.setattr(troubles, "LAPSE_S", 0.2)


async def ended(seen: Troubles) -> float:
    """Wait until nothing is wrong, return how long that took."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    async with asyncio.timeout(10):
        while seen.warnings():  # noqa: ASYNC110  timers of its own
            await asyncio.sleep(0.005)
    return loop.time() - started_s


async def test_what_works_again_for_a_while_is_no_trouble_any_more() -> None:
    seen = Troubles(get_logger())
    seen.end("writes to A")
    seen.begin("writes to A", "no room")
    seen.begin("writes to B", "no room")
    assert seen.warnings() == (
        "JetStream: writes to A: no room",
        "JetStream: writes to B: no room",
    )

    for what in ("writes to A", "writes to B", "writes to B"):
        seen.end(what)

    assert len(seen.warnings()) == 2
    assert await ended(seen) < 0.2


async def test_what_fails_between_successes_is_a_trouble_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(troubles, "LAPSE_S", 30.0)
    seen = Troubles(get_logger())
    for _ in range(4):
        seen.begin("writes to A", "no room")
        seen.end("writes to A")
        await asyncio.sleep(0.03)
    seen.begin("writes to A", "no room")
    await asyncio.sleep(2 * troubles.SURE_S)

    assert seen.warnings()
    seen.end("writes to A")
    await ended(seen)


async def test_what_is_not_tried_again_is_forgotten() -> None:
    seen = Troubles(get_logger())
    seen.begin("writes to A", "no room")

    assert await ended(seen) >= 0.15
