import pytest

from kvmesh.app.mesh.session_store import SessionStore
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.sessions import SessionOptions, Sessions
from kvmesh.ports import Subscription, TableListener


class Table:
    """Refuses one key."""

    def __init__(self, poison: str) -> None:
        self.poison = poison
        self.put_keys: list[str] = []

    def put(self, key: str, value: bytes) -> None:
        if key == self.poison:
            raise ValueError(key)
        assert value
        self.put_keys.append(key)

    async def follow(self, listener: TableListener) -> Subscription:
        raise NotImplementedError


async def test_a_binding_that_cannot_be_written_takes_no_others_along() -> None:
    sessions = Sessions(SessionOptions())
    for name in ("one", "two", "three"):
        sessions.bind(name, WorkerId("w"), 0.0)
    keys = list(sessions.updates)
    table = Table(keys[1])
    store = SessionStore(sessions, table)

    with pytest.raises(ValueError, match=keys[1]):
        await store.stop()
    await store.stop()

    assert table.put_keys == [keys[0], keys[2]]
    assert not sessions.updates
