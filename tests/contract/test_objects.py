"""What every ObjectStore promises."""

import hashlib
import os
from typing import Any

import pytest

from kvmesh.errors import TransportError


@pytest.mark.parametrize("size", [0, 1, 512 * 1024, 512 * 1024 + 1, 5_000_000])
async def test_what_is_put_is_got(backend: Any, size: int) -> None:
    writer, reader = await backend.objects(), await backend.objects()
    data = os.urandom(size)

    info = await writer.put("idx-1-2-3", data)

    assert await reader.get("idx-1-2-3") == data
    assert info.name == "idx-1-2-3"
    assert info.size == size
    assert info.sha256 == hashlib.sha256(data).hexdigest()


async def test_list_shows_what_is_complete(backend: Any) -> None:
    store = await backend.objects()
    assert list(await store.list()) == []

    second = await store.put("b", b"22")
    first = await store.put("a", b"1")
    await backend.leave_orphan()

    assert list(await store.list()) == [first, second]
    assert 0 <= second.modified_s <= first.modified_s


async def test_a_missing_object_is_an_error(backend: Any) -> None:
    store = await backend.objects()

    with pytest.raises(TransportError, match="does not exist"):
        await store.get("nothing")


async def test_a_deleted_object_is_gone(backend: Any) -> None:
    store = await backend.objects()
    await store.put("a", b"1")

    await store.delete("a")
    await store.delete("a")

    assert list(await store.list()) == []
    with pytest.raises(TransportError, match="does not exist"):
        await store.get("a")


async def test_a_truncated_object_is_an_error_and_never_hangs(backend: Any) -> None:
    store = await backend.objects()
    await store.put("a", os.urandom(3_000_000))

    await backend.damage_object("a")

    with pytest.raises(TransportError, match=r"damaged|chunks"):
        await store.get("a")


async def test_an_object_is_replaced_as_a_whole(backend: Any) -> None:
    store = await backend.objects()
    await store.put("a", b"old")

    await store.put("a", b"new and longer")

    assert await store.get("a") == b"new and longer"
    assert [info.size for info in await store.list()] == [14]


async def test_orphans_are_deleted_and_objects_kept(backend: Any) -> None:
    store = await backend.objects()
    await store.put("a", b"1")
    await backend.leave_orphan()

    assert await store.delete_orphans(3600) == 0
    assert await store.delete_orphans(0) == 1
    assert await store.delete_orphans(0) == 0
    assert await store.get("a") == b"1"


async def test_names_may_hold_any_character(backend: Any) -> None:
    store = await backend.objects()
    name = "idx 2025-01-01T00:00:00.1Z/ü*>.bin"

    await store.put(name, b"1")

    assert [info.name for info in await store.list()] == [name]
    assert await store.get(name) == b"1"
