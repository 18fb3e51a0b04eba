"""What every SharedTable promises."""

from typing import Any


class Bindings:
    """A TableListener that keeps the newest values."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.caught_up = 0

    def on_value(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def on_caught_up(self) -> None:
        self.caught_up += 1


async def follower(backend: Any, bucket: str = "code") -> tuple[Any, Any, Bindings]:
    table = await (await backend.plane()).sessions(bucket, 3600)
    bindings = Bindings()
    return table, await table.follow(bindings), bindings


async def test_everybody_learns_what_anybody_writes(backend: Any, eventually: Any) -> None:
    one, _, ones = await follower(backend)
    two, _, twos = await follower(backend)

    one.put("a", b"w1")
    one.put("b", b"w2")
    await eventually(lambda: len(twos.values) == 2)
    two.put("a", b"w3")
    await eventually(lambda: ones.values.get("a") == b"w3" == twos.values.get("a"))

    assert ones.values == twos.values == {"a": b"w3", "b": b"w2"}


async def test_a_late_follower_learns_the_newest_values_then_that_it_has_all(
    backend: Any, eventually: Any
) -> None:
    one, _, ones = await follower(backend)
    for number in range(20):
        one.put(f"key-{number % 5}", b"%d" % number)
    await eventually(lambda: ones.values.get("key-4") == b"19")

    _, _, late = await follower(backend)
    await eventually(lambda: late.caught_up)

    assert late.values == {f"key-{number}": b"%d" % (15 + number) for number in range(5)}
    assert late.caught_up == 1


async def test_an_empty_table_is_read_at_once(backend: Any, eventually: Any) -> None:
    _, _, bindings = await follower(backend)

    await eventually(lambda: bindings.caught_up)

    assert bindings.values == {}


async def test_tables_of_other_buckets_are_others(backend: Any, eventually: Any) -> None:
    one, _, ones = await follower(backend)
    _, _, others = await follower(backend, "chat")

    one.put("a", b"w1")
    await eventually(lambda: ones.values and others.caught_up)

    assert others.values == {}


async def test_nothing_comes_after_close(backend: Any, eventually: Any) -> None:
    table, following, closed = await follower(backend)
    await eventually(lambda: closed.caught_up)
    _, _, running = await follower(backend)

    await following.close()
    await following.close()
    table.put("a", b"w1")
    await eventually(lambda: running.values)

    assert closed.values == {}


async def test_what_nobody_writes_again_expires(backend: Any, eventually: Any) -> None:
    plane, bindings = await backend.plane(), Bindings()
    table = await plane.sessions("code", 1)
    await table.follow(bindings)
    table.put("a", b"w1")
    await eventually(lambda: bindings.values)

    await backend.wait_s(1.5)
    late = Bindings()
    await table.follow(late)
    await eventually(lambda: late.caught_up)

    assert late.values == {}
    assert bindings.values == {"a": b"w1"}, "the end of a value is none"


async def test_an_empty_value_is_none(backend: Any, eventually: Any) -> None:
    """It marks an end: learnt, it would bind a session to a worker without a name."""
    table, _, bindings = await follower(backend)

    table.put("a", b"")
    table.put("b", b"w1")
    await eventually(lambda: "b" in bindings.values)

    assert bindings.values == {"b": b"w1"}


async def test_homes_are_one_table_of_the_whole_mesh_that_keeps_the_last_written(
    backend: Any, eventually: Any
) -> None:
    one = await (await backend.plane()).homes(3600, 5)
    two = await (await backend.plane()).homes(3600, 5)
    bindings = Bindings()
    await two.follow(bindings)
    for number in range(8):
        one.put(f"key-{number}", b"chat")
    await eventually(lambda: bindings.values.get("key-7"))
    one.put("key-3", b"chat,code")
    await eventually(lambda: bindings.values.get("key-3") == b"chat,code")

    late = Bindings()
    await two.follow(late)
    await eventually(lambda: late.caught_up)

    assert sorted(late.values) == [f"key-{number}" for number in range(3, 8)]


async def test_programs_are_a_table_of_their_bucket_that_keeps_the_last_written(
    backend: Any, eventually: Any
) -> None:
    one = await (await backend.plane()).programs("code", 3600, 3)
    plane = await backend.plane()
    two, other = await plane.programs("code", 3600, 3), await plane.programs("chat", 3600, 3)
    sessions = await plane.sessions("code", 3600)
    for number in range(5):
        one.put(f"agent-{number}", b"%d" % number)

    kept, others, bound = Bindings(), Bindings(), Bindings()
    await two.follow(kept)
    await eventually(lambda: kept.values.get("agent-4"))
    late = Bindings()
    await two.follow(late)
    await other.follow(others)
    await sessions.follow(bound)
    await eventually(lambda: late.caught_up and others.caught_up and bound.caught_up)

    assert late.values == {f"agent-{number}": b"%d" % number for number in (2, 3, 4)}
    assert others.values == bound.values == {}
