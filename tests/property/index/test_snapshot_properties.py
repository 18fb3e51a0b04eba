"""A snapshot says what was, or nothing."""

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import MAGIC, Position, WorkerRecord, encode_snapshot
from kvmesh.errors import CodecError

histories = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.integers(0, 3),
        st.lists(st.integers(0, 2), min_size=1, max_size=30),
        st.booleans(),
    ),
    max_size=8,
)
records = st.lists(
    st.builds(
        WorkerRecord,
        worker=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True).map(WorkerId),
        epoch=st.integers(0, MAX_ORDINAL),
        next_seq=st.integers(0, MAX_ORDINAL),
        gap=st.booleans(),
        block_size=st.integers(0, 2**20),
        extra=st.binary(max_size=50),
    ),
    unique_by=lambda one: one.worker,
    max_size=5,
).map(tuple)
positions = st.builds(
    Position,
    created=st.text(max_size=20),
    sequence=st.integers(0, MAX_ORDINAL),
    extra=st.binary(max_size=20),
)


def index_of(history: list[tuple[int, int, list[int], bool]]) -> KvIndex:
    index = KvIndex()
    for number, tier, path, leaves in history:
        worker = WorkerId(f"w{number}")
        index.apply(worker, Stored(ROOT, pack_hashes(sequence_hashes(path, 1)), tier))
        if leaves:
            index.remove_worker(worker)
    return index


@given(histories, positions, records)
def test_what_was_encoded_is_decoded(
    history: list[tuple[int, int, list[int], bool]],
    position: Position,
    known: tuple[WorkerRecord, ...],
) -> None:
    index = index_of(history)

    data = b"".join(encode_snapshot(index.freeze(), position, known))
    snapshot = decode_snapshot(data)
    copy = KvIndex()
    copy.load(snapshot.image, snapshot.truncated)

    assert (snapshot.position, snapshot.records) == (position, known)
    assert copy.digest() == index.digest()
    assert sorted(copy.workers()) == sorted(index.workers())
    assert b"".join(encode_snapshot(copy.freeze(), position, known)) is not None


@given(histories, st.data())
def test_damage_behind_a_right_checksum_is_an_error_or_harmless(
    history: list[tuple[int, int, list[int], bool]], data: st.DataObject
) -> None:
    index = index_of(history)
    good = b"".join(encode_snapshot(index.freeze(), Position()))
    body = bytearray(good[:-8])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(len(MAGIC), len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(len(MAGIC), len(body))) :]
    bad = bytes(body) + xxh3_64_intdigest(bytes(body)).to_bytes(8, "little")

    try:
        snapshot = decode_snapshot(bad)
    except CodecError:
        return
    copy = KvIndex()
    copy.load(snapshot.image, snapshot.truncated)

    # Names and positions may have changed: hashes, which digests cover, cannot have.
    shares = sorted(index.worker_digest(worker) for worker in index.workers())
    assert sorted(copy.worker_digest(worker) for worker in copy.workers()) == shares or bad == good


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    sealed = MAGIC + noise
    for data in (noise, sealed, sealed + xxh3_64_intdigest(sealed).to_bytes(8, "little")):
        try:
            decode_snapshot(data)
        except CodecError:
            continue
        raise AssertionError(f"{data!r} was taken for a snapshot")
