"""Several pickers of one bucket: one view, and one of them killed under load."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvmesh.app.ops.nats_server import NatsServer
from tests.integration.picker.conversations import AtPicker, Crowd, Load
from tests.integration.picker.fleet import PickerFleet, PickerProcess, running
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

CONVERSATIONS = 24


async def agree(fleet: PickerFleet, pickers: Sequence[PickerProcess]) -> bool:
    """Return whether the pickers hold one index, and all of the journal."""
    views = [(await fleet.status(one.url))["mesh"] for one in pickers]
    return len({(one["applied_sequence"], one["digest"]) for one in views}) == 1


async def taken_snapshots(fleet: PickerFleet, pickers: Sequence[PickerProcess]) -> int:
    """Return how many snapshots these wrote."""
    views = [(await fleet.status(one.url))["mesh"] for one in pickers]
    return sum(one["snapshotter"]["taken"] for one in views)


async def test_one_of_three_pickers_is_killed_and_the_others_lose_nothing(
    tmp_path: Path, nats_server: NatsServer, namespace: str
) -> None:
    fleet = PickerFleet(tmp_path, nats_server, namespace, engines=3)
    pickers = [fleet.add_picker("--snapshot-interval-s", "1") for _ in range(3)]
    async with running(fleet):
        crowd = Crowd(fleet, CONVERSATIONS)
        at = [AtPicker(fleet, one) for one in pickers]
        await crowd.go_on(at)
        await until(lambda: agree(fleet, pickers))

        kept = [await crowd.go_on([*at[1:], at[0]])]
        assert not crowd.unknown

        loads = [Load(AtPicker(fleet, one), 2) for one in pickers]
        await until(lambda: asyncio.sleep(0, all(one.answered >= 8 for one in loads)))
        pickers[0].process.kill()
        kept.append(await crowd.go_on(at[1:]))
        assert not crowd.unknown
        await until(lambda: asyncio.sleep(0, bool(loads[0].broken)))
        for one in loads:
            await one.end()

        assert not loads[1].broken
        assert not loads[2].broken

        await until(lambda: taken_snapshots(fleet, pickers[1:]))
        pickers[0].process.start()
        await fleet.until_answers(pickers[0].process)
        restarted = (await fleet.status(pickers[0].url))["mesh"]
        kept.append(await crowd.go_on([AtPicker(fleet, pickers[0])]))

    assert restarted["loader"]["loaded"] == 1
    assert restarted["indexer"]["resyncs_asked"] == 0
    assert not crowd.unknown
    # All of them, but for a starved machine, where computing the prompt anew elsewhere is sooner.
    assert min(kept) > 0.5, (kept, crowd.why)
