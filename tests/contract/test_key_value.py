"""What every KeyValue promises."""

import asyncio
from typing import Any

import pytest

from kvmesh.errors import ConflictError
from kvmesh.ports import Entry

LEASE = "lease.snap.code"


async def absent(backend: Any, store: Any) -> None:
    """Wait until the lease is gone: a busy server expires it late."""
    async with asyncio.timeout(60):
        while await store.get(LEASE) is not None:
            await backend.wait_s(0.1)


async def test_a_key_never_written_is_absent(backend: Any) -> None:
    store = await backend.key_values()

    assert await store.get(LEASE) is None


async def test_a_written_value_is_read_by_another_client(backend: Any) -> None:
    first, second = await backend.key_values(), await backend.key_values()

    revision = await first.put(LEASE, b"me", expected=None)

    assert await second.get(LEASE) == Entry(b"me", revision)


async def test_the_second_creator_loses(backend: Any) -> None:
    store = await backend.key_values()
    await store.put(LEASE, b"me", expected=None)

    with pytest.raises(ConflictError):
        await store.put(LEASE, b"you", expected=None)

    entry = await store.get(LEASE)
    assert entry is not None
    assert entry.value == b"me"


async def test_of_many_creators_at_once_one_wins(backend: Any) -> None:
    stores = [await backend.key_values() for _ in range(5)]

    results = await asyncio.gather(
        *(store.put(LEASE, b"%d" % n, expected=None) for n, store in enumerate(stores)),
        return_exceptions=True,
    )

    winners = [n for n, result in enumerate(results) if isinstance(result, int)]
    assert len(winners) == 1
    assert all(isinstance(each, (int, ConflictError)) for each in results)
    entry = await stores[0].get(LEASE)
    assert entry is not None
    assert entry.value == b"%d" % winners[0]


async def test_an_update_needs_the_last_revision(backend: Any) -> None:
    store = await backend.key_values()
    first = await store.put(LEASE, b"1", expected=None)
    second = await store.put(LEASE, b"2", expected=first)

    with pytest.raises(ConflictError):
        await store.put(LEASE, b"3", expected=first)

    assert await store.get(LEASE) == Entry(b"2", second)


async def test_revisions_grow_so_that_they_fence(backend: Any) -> None:
    store = await backend.key_values()
    revisions = [await store.put(LEASE, b"0", expected=None)]

    for number in range(5):
        revisions.append(await store.put(LEASE, b"%d" % number, expected=revisions[-1]))
    await store.delete(LEASE, expected=revisions[-1])
    revisions.append(await store.put(LEASE, b"again", expected=None))

    assert revisions == sorted(set(revisions))


async def test_a_deleted_key_is_absent_and_may_be_created(backend: Any) -> None:
    store = await backend.key_values()
    revision = await store.put(LEASE, b"1", expected=None)

    await store.delete(LEASE, expected=revision)

    assert await store.get(LEASE) is None
    assert await store.put(LEASE, b"2", expected=None) > revision


async def test_a_delete_with_an_old_revision_loses(backend: Any) -> None:
    store = await backend.key_values()
    first = await store.put(LEASE, b"1", expected=None)
    second = await store.put(LEASE, b"2", expected=first)

    with pytest.raises(ConflictError):
        await store.delete(LEASE, expected=first)

    assert await store.get(LEASE) == Entry(b"2", second)


async def test_an_update_of_a_deleted_key_loses(backend: Any) -> None:
    store = await backend.key_values()
    revision = await store.put(LEASE, b"1", expected=None)
    await store.delete(LEASE, expected=revision)

    with pytest.raises(ConflictError):
        await store.put(LEASE, b"2", expected=revision)


async def test_an_expired_lease_is_absent_and_may_be_taken(backend: Any) -> None:
    holder, candidate = await backend.key_values(), await backend.key_values()
    revision = await holder.put(LEASE, b"holder", expected=None, ttl_s=2)
    assert await candidate.get(LEASE) == Entry(b"holder", revision)

    await backend.wait_s(2.0)
    await absent(backend, candidate)

    taken = await candidate.put(LEASE, b"candidate", expected=None, ttl_s=1)
    assert taken > revision
    with pytest.raises(ConflictError):
        await holder.put(LEASE, b"holder", expected=revision, ttl_s=1)


async def test_a_renewed_lease_lives_on(backend: Any) -> None:
    store = await backend.key_values()
    revision = await store.put(LEASE, b"holder", expected=None, ttl_s=4)

    for _ in range(5):
        await backend.wait_s(0.9)
        revision = await store.put(LEASE, b"holder", expected=revision, ttl_s=4)

    assert await store.get(LEASE) == Entry(b"holder", revision)


async def test_an_expiry_does_not_bring_back_the_value_before(backend: Any) -> None:
    store = await backend.key_values()
    revision = await store.put(LEASE, b"for ever", expected=None)
    await store.put(LEASE, b"for a second", expected=revision, ttl_s=1)

    await backend.wait_s(1.0)
    await absent(backend, store)


async def test_keys_lists_the_live_ones_with_the_prefix(backend: Any) -> None:
    store = await backend.key_values()
    await store.put("router.code.r2", b"", expected=None)
    await store.put("router.code.r1", b"", expected=None)
    await store.put("router.chat.r1", b"", expected=None)
    gone = await store.put("router.code.r3", b"", expected=None)
    await store.delete("router.code.r3", expected=gone)

    assert await store.keys("router.code.") == ["router.code.r1", "router.code.r2"]
    assert len(await store.keys("")) == 3
    assert await store.keys("lease") == []


async def test_values_are_bytes_of_any_kind(backend: Any) -> None:
    store = await backend.key_values()
    value = bytes(range(256)) * 100

    await store.put("manifest.code", value, expected=None)

    entry = await store.get("manifest.code")
    assert entry is not None
    assert entry.value == value
