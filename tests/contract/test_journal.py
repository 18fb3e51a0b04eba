"""What every Journal promises."""

import asyncio
import contextlib
from typing import Any

import pytest

from kvmesh.errors import TransportError
from tests.contract.journal_writing import append_all, numbered


async def test_a_new_stream_is_empty_and_named(backend: Any) -> None:
    journal = await backend.journal()

    state = await journal.state()

    assert (state.first_sequence, state.last_sequence, state.messages) == (1, 0, 0)
    assert state.created


async def test_two_clients_share_one_stream(backend: Any) -> None:
    first, second = await backend.journal(), await backend.journal()

    await append_all(first, backend.prefix, numbered(2))

    assert await first.state() == await second.state()
    assert (await second.state()).messages == 2


async def test_appends_are_acked_once_each_with_their_sequence(backend: Any) -> None:
    journal = await backend.journal()

    acks = await append_all(journal, backend.prefix, numbered(100))

    assert sorted(acks) == list(range(1, 101))


async def test_append_never_calls_back_from_within(backend: Any) -> None:
    journal = await backend.journal()
    acks: list[int] = []

    journal.append(f"{backend.prefix}.ev.code.w1", b"x", acks.append)

    assert acks == []


async def test_a_message_over_the_bound_is_never_acked(backend: Any) -> None:
    journal = await backend.journal()
    acks: list[int] = []

    journal.append(f"{backend.prefix}.ev.code.w1", bytes(600 * 1024), acks.append)
    await append_all(journal, backend.prefix, numbered(1))

    assert acks == []
    assert (await journal.state()).messages == 1


async def test_a_tail_delivers_what_was_and_what_comes(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(10))

    async with contextlib.AsyncExitStack() as stack:
        tail = await journal.tail(0, "", recorder)
        stack.push_async_callback(tail.close)
        await eventually(lambda: len(recorder.records) == 10)
        await append_all(journal, backend.prefix, numbered(10, 10))
        await eventually(lambda: len(recorder.records) == 20)

    assert recorder.payloads == numbered(20)
    assert recorder.records[0].subject == f"{backend.prefix}.ev.code.w1"
    assert not recorder.gaps
    assert not recorder.recreated


async def test_a_tail_starts_behind_the_position(
    backend: Any, make_recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(10))
    recorder = make_recorder().start_at(7)

    tail = await journal.tail(7, (await journal.state()).created, recorder)
    await eventually(lambda: recorder.caught_up)
    await tail.close()

    assert recorder.payloads == numbered(3, 7)
    assert recorder.caught_up == [10]


async def test_more_than_a_window_arrives_in_order(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(3000))

    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: len(recorder.records) == 3000)
    await tail.close()

    assert recorder.payloads == numbered(3000)


async def test_an_empty_stream_is_caught_up_at_once(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()

    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: recorder.caught_up)
    await tail.close()

    assert recorder.caught_up == [0]


async def test_nothing_is_delivered_after_close(
    backend: Any, make_recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    closed, running = make_recorder(), make_recorder()
    first = await journal.tail(0, "", closed)
    second = await journal.tail(0, "", running)
    await append_all(journal, backend.prefix, numbered(2))
    await eventually(lambda: len(closed.records) == 2)

    await first.close()
    await first.close()
    await append_all(journal, backend.prefix, numbered(2, 2))
    await eventually(lambda: len(running.records) == 4)
    await second.close()

    assert len(closed.records) == 2


async def test_closing_inside_a_delivery_ends_it(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(5))
    tasks: list[asyncio.Task[None]] = []
    tail = await journal.tail(0, "", recorder)
    take = recorder.on_record

    def close_at_once(record: Any) -> None:
        take(record)
        tasks.append(asyncio.create_task(tail.close()))

    recorder.on_record = close_at_once
    await eventually(lambda: recorder.records)
    await asyncio.gather(*tasks)
    seen = len(recorder.records)
    await append_all(journal, backend.prefix, numbered(5))

    assert len(recorder.records) == seen


async def test_the_state_of_a_stream_that_is_not_there_is_an_error(backend: Any) -> None:
    journal = await backend.journal()
    if hasattr(backend, "server"):
        del backend.server.streams["EVENTS"]
    else:
        await (await backend.admin()).delete_stream(f"EVENTS_{backend.unique}")

    with pytest.raises(TransportError):
        await journal.state()


async def test_a_message_that_is_sent_again_by_its_id_is_stored_once(
    backend: Any, eventually: Any
) -> None:
    plane = await backend.plane()
    journal = await plane.usage("code")
    acks: list[int] = []
    subject = f"{backend.prefix}.use.code.r1"

    for name in ("a", "b", "a"):
        journal.append(subject, name.encode(), acks.append, name)
        await eventually(lambda name=name: len(acks) >= {"a": 1, "b": 2}[name])
    await eventually(lambda: len(acks) == 3)

    assert acks == [1, 2, 1]
    assert (await journal.state()).last_sequence == 2
