import pytest

from kvmesh.core.engines.kv_events import pending
from kvmesh.core.engines.kv_events.pending import PendingBatches


def test_more_than_there_is_room_for_drops_the_oldest() -> None:
    waiting = PendingBatches(10)

    for seq in range(100):
        waiting.add(seq, b"x")

    assert [waiting.take()[0] for _ in range(len(waiting))] == list(range(90, 100))


def test_so_many_bytes_wait_however_few_batches_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "MOST_BYTES", 1_000)
    waiting = PendingBatches(1_000)

    for seq in range(100):
        waiting.add(seq, bytes(300))
    waiting.add(100, bytes(2_000))
    waiting.add(101, bytes(900))

    assert [waiting.take()[0] for _ in range(len(waiting))] == [101]
    waiting.add(1, bytes(999))
    waiting.clear()
    waiting.add(2, bytes(999))
    assert waiting.first[0] == 2
