"""What every EventPlane promises."""

import asyncio
from typing import Any

from kvmesh.ports import Refusals
from kvmesh.tasks import end_tasks
from tests.contract.journal_writing import append_all, numbered


async def test_what_one_plane_appends_another_reads(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    router, worker = await backend.plane(), await backend.plane()
    tail = await (await router.journal("code")).tail(0, "", recorder)

    journal = await worker.journal("code", ensure=False)
    await append_all(journal, backend.prefix, numbered(3))
    await eventually(lambda: len(recorder.records) == 3)
    await tail.close()

    assert recorder.payloads == numbered(3)


async def test_buckets_have_journals_and_snapshots_of_their_own_and_share_the_keys(
    backend: Any,
) -> None:
    plane = await backend.plane()
    code, chat = await plane.journal("code"), await plane.journal("chat")
    code_keys, code_objects = await plane.stores("code")
    chat_keys, chat_objects = await plane.stores("chat")

    await append_all(code, backend.prefix, numbered(2))
    await code_objects.put("idx-1", b"snapshot")
    await code_keys.put("lease.code", b"r1", expected=None)

    assert (await code.state()).last_sequence == 2
    assert (await chat.state()).last_sequence == 0
    assert await chat_objects.list() == []
    assert (await chat_keys.get("lease.code")).value == b"r1"


async def test_a_plane_that_is_connected_waits_for_nothing_and_has_no_warnings(
    backend: Any,
) -> None:
    plane = await backend.plane()

    await plane.warn_of_risks()

    assert plane.connected
    assert plane.waiting() == ""
    assert plane.warnings() == ()
    assert plane.unverified() == Refusals()


async def test_closing_disconnects_and_tells_who_listens(backend: Any) -> None:
    plane = await backend.plane()
    told: list[bool] = []
    forgotten: list[bool] = []
    plane.on_change(told.append)
    plane.on_change(forgotten.append)()
    await plane.journal("code")

    await plane.close()
    await plane.close()

    assert not plane.connected
    assert told == [False]
    assert forgotten == []


async def test_a_declared_bucket_needs_no_making(backend: Any) -> None:
    admin, worker = await backend.plane(), await backend.plane()

    await admin.declare("code", 3600)
    await admin.declare("code", 3600)
    journal = await worker.journal("code", ensure=False)

    assert (await journal.state()).last_sequence == 0


async def test_a_deleted_stream_is_made_anew_by_who_keeps_it(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    plane = await backend.plane()
    journal = await plane.journal("code")
    await append_all(journal, backend.prefix, numbered(2))
    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: recorder.caught_up)

    keeping = asyncio.create_task(plane.keep())
    await backend.delete_stream("code")
    await eventually(lambda: recorder.recreated and not plane.warnings())
    await end_tasks(keeping)
    await tail.close()

    assert (await journal.state()).messages == 0


async def test_a_listener_to_the_connection_that_raises_does_not_stop_the_others(
    backend: Any, reported: Any
) -> None:
    plane = await backend.plane()
    told: list[bool] = []

    def fail(up: bool) -> None:
        raise ValueError(up)

    plane.on_change(fail)
    plane.on_change(told.append)
    await plane.close()

    assert told == [False]
    assert [str(one["exception"]) for one in reported] == ["False"]
