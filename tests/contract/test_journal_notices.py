"""What every Journal tells a tail when messages or the whole stream are gone."""

from typing import Any

from tests.contract.journal_writing import append_all, numbered


async def test_purged_messages_are_a_gap_with_its_exact_range(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(10))

    purged = await journal.purge(6)
    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: recorder.caught_up)
    await tail.close()

    assert purged == 6
    assert recorder.gaps == [(1, 6)]
    assert recorder.payloads == numbered(4, 6)
    assert (await journal.state()).first_sequence == 7


async def test_a_purge_of_everything_is_a_gap_up_to_the_end(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(5))

    await journal.purge(100)
    tail = await journal.tail(2, "", recorder.start_at(2))
    await eventually(lambda: recorder.caught_up)
    await tail.close()

    assert recorder.gaps == [(3, 5)]
    assert recorder.caught_up == [5]
    assert (await journal.state()).last_sequence == 5


async def test_a_purge_behind_the_position_is_no_gap(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(10))
    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: len(recorder.records) == 10)

    await journal.purge(8)
    await append_all(journal, backend.prefix, numbered(2, 10))
    await eventually(lambda: len(recorder.records) == 12)
    await tail.close()

    assert recorder.payloads == numbered(12)
    assert not recorder.gaps


async def test_purging_nothing_deletes_nothing(backend: Any) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(3))

    assert await journal.purge(0) == 0
    assert (await journal.state()).messages == 3


async def test_a_remade_stream_is_noticed_and_read_from_its_start(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(5))
    before = (await journal.state()).created
    tail = await journal.tail(0, before, recorder)
    await eventually(lambda: len(recorder.records) == 5)

    await backend.remake_stream()
    await append_all(journal, backend.prefix, numbered(8, 100))
    await eventually(lambda: len(recorder.records) == 13)
    await tail.close()

    assert [state.created for state in recorder.recreated] == [(await journal.state()).created]
    assert recorder.recreated[0].created != before
    assert recorder.payloads[5:] == numbered(8, 100)


async def test_a_position_in_an_earlier_stream_is_worth_nothing(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(5))

    tail = await journal.tail(3, "another stream's birth", recorder.start_at(3))
    await eventually(lambda: recorder.caught_up)
    await tail.close()

    assert len(recorder.recreated) == 1
    assert recorder.payloads == numbered(5)


async def test_a_position_behind_the_end_means_the_stream_lost_its_end(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(5))

    tail = await journal.tail(9, "", recorder.start_at(9))
    await eventually(lambda: recorder.caught_up)
    await tail.close()

    assert [state.last_sequence for state in recorder.recreated] == [5]
    assert recorder.payloads == numbered(5)


async def test_a_lost_end_is_noticed_by_a_running_tail(
    backend: Any, recorder: Any, eventually: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(5))
    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: recorder.caught_up)

    await backend.lose_tail(3)
    await eventually(lambda: recorder.recreated)
    await eventually(lambda: len(recorder.records) == 8)
    await tail.close()

    assert recorder.payloads[5:] == numbered(3)


async def test_a_listener_that_raises_is_told_what_follows(
    backend: Any, recorder: Any, eventually: Any, reported: Any
) -> None:
    journal = await backend.journal()
    await append_all(journal, backend.prefix, numbered(10))
    await journal.purge(2)
    told = {"on_gap", "on_record", "on_caught_up"}

    def raise_once(name: str) -> Any:
        note = getattr(recorder, name)

        def call(*arguments: Any) -> None:
            note(*arguments)
            if name in told:
                told.discard(name)
                raise ValueError(name)

        return call

    for name in sorted(told):
        setattr(recorder, name, raise_once(name))
    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: len(recorder.records) == 8)
    await append_all(journal, backend.prefix, numbered(1, 10))
    await eventually(lambda: len(recorder.records) == 9 and not told)
    await tail.close()

    assert recorder.payloads == numbered(9, 2)
    assert recorder.gaps == [(1, 2)]
    assert sorted(str(one["exception"]) for one in reported) == [
        "on_caught_up",
        "on_gap",
        "on_record",
    ]
