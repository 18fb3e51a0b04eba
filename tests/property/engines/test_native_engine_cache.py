"""The compiled engine cache against a naive one: events, errors, counts and dumps, bit by bit."""

import json
import random
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events import closure, group_hits, residency
from kvmesh.core.engines.kv_events.cache import EngineCache, EngineCacheStatistics
from kvmesh.core.engines.kv_events.saved_cache import pack_block
from kvmesh.errors import CodecError
from tests.reference.engines.cache import NaiveEngineCache
from tests.reference.engines.residency import unpack_blocks

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines"
CAPTURES = sorted(path.name for path in FIXTURES.glob("*.jsonl"))
READ_BY_HAND = {"vllm-0.23.1-0181ea31", "vllm-0.33.0", "tensorrt_llm-1.3.0"}
"""A map as envelope, ids that a hash covers ahead, maps as keys of images: Python decodes them."""
SCHEMAS = json.loads((FIXTURES / "wire_fixtures.json").read_text())
PUBLISHED = [
    bytes.fromhex(payload)
    for schema in SCHEMAS.values()
    for name, payload in schema.items()
    if name != "versions"
]
ORDINARY = [
    bytes.fromhex(payload)
    for schema in SCHEMAS.keys() - READ_BY_HAND
    for name, payload in SCHEMAS[schema].items()
    if name != "versions"
]
FIELDS = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
encode = msgspec.msgpack.encode


@contextmanager
def narrow() -> Iterator[None]:
    """Bounds that a few blocks reach."""
    patches = [
        mock.patch.object(residency, "MOST_BLOCKS", 9),
        mock.patch.object(residency, "MOST_TWINS", 1),
        mock.patch.object(residency, "MOST_REFERENCES", 3),
        mock.patch.object(closure, "MAX_RUN", 3),
        mock.patch.object(group_hits, "MAX_RUN", 3),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


class Twins:
    """Both, told the same; each must answer as the other."""

    def __init__(self, size: int | None = None, *, secret: bytes = b"", hidden: int = 99) -> None:
        self.naive = NaiveEngineCache(size, secret=secret, max_hidden=hidden)
        self.compiled = EngineCache(size, secret=secret, max_hidden=hidden)

    def tell(self, name: str, *args: object) -> object:
        answers = [self._answer(getattr(one, name), *args) for one in (self.naive, self.compiled)]
        assert answers[0] == answers[1]
        assert self.naive.statistics() == self.compiled.statistics()
        assert self.naive.block_size == self.compiled.block_size
        assert self.naive.complete == self.compiled.complete
        return answers[0]

    def save_and_load(self) -> None:
        """Have both go on from what the naive one saved; both must save the same blocks."""
        saved, compiled = self.naive.save(), self.compiled.save()
        assert (saved is None) == (compiled is None)
        if saved is None or compiled is None:
            return
        assert msgspec.structs.replace(compiled, blocks=saved.blocks) == saved
        assert sorted(map(pack_block, unpack_blocks(compiled))) == sorted(
            map(pack_block, unpack_blocks(saved))
        )
        self.tell("load", saved)

    @staticmethod
    def _answer(call: Callable[..., object], *args: object) -> object:
        try:
            return call(*args)
        except CodecError as error:
            return str(error)


def digest(*parts: object) -> int:
    return xxh3_64_intdigest(repr(parts).encode())


prefixes = st.lists(st.integers(0, 2), min_size=1, max_size=5)
names = st.sampled_from([None, None, "", "lora", "lôra"])
salts = st.sampled_from([None, None, "", "salt", "sält", "lora"])
keys = st.sampled_from(
    [None, [], ["lora"], ["salt"], ["lora", "salt"], [7], [-40, 300], [["image", 0]], "salt", b"x",
     ["lora", [70_000, "x" * 40], b"12"], ["a", "b"], [1.5, True], [{"odd": 1}], 2**63],
)  # fmt: skip


@st.composite
def stores(draw: st.DrawFn) -> dict[str, object]:
    """A run of a small tree, its hashes covering the salt or not, in any form known."""
    prefix = draw(prefixes)
    length = draw(st.integers(1, 3))
    start = max(0, len(prefix) - length)
    name, salt = draw(names), draw(salts)
    space = draw(st.sampled_from([(), (name, salt)]))
    width = draw(st.sampled_from([2, 2, 2, 4, 1]))
    form = draw(st.sampled_from([int, int, bytes, "negative"]))

    def hashed(end: int) -> object:
        number = digest(*prefix[:end], *space)
        if form is bytes:
            return b"head" + number.to_bytes(8, "big")
        return number - (1 << 64) if form == "negative" and number >> 63 else number

    run = [hashed(end + 1) for end in range(start, len(prefix))]
    ids: list[object] = [
        70_000 * (100 + block) // 100 for block in prefix[start:] for _ in range(width)
    ]
    if draw(st.integers(0, 9)) == 0:
        ids = [[one, 5] for one in ids]
    event: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": run,
        "parent_block_hash": hashed(start) if start else None,
        "token_ids": [] if draw(st.integers(0, 9)) == 0 else ids,
        "block_size": width,
        "lora_id": draw(st.sampled_from([None, None, 3])),
        "medium": draw(
            st.sampled_from([None, "GPU", "gpu", "GPU", "CPU", "DISK", "tape", "größe"])
        ),
        "lora_name": name,
        "extra_keys": draw(
            st.none()
            | st.lists(keys, min_size=len(run), max_size=len(run))
            | st.lists(keys, max_size=2)
        ),
        "group_idx": draw(st.sampled_from([None, 0, 0, 0, 1])),
        "kv_cache_spec_kind": draw(
            st.sampled_from([None, "full_attention", "full_attention", "sliding_window"])
        ),
    }
    rest: dict[str, object] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "cache_salt": st.just(salt),
                "mm_keys": st.lists(keys, min_size=len(run), max_size=len(run)),
                "locality": st.sampled_from(["LOCAL", "REMOTE", 7]),
                "session_id": st.just("s"),
                "odd": st.just([{"x": 1}]),
            },
        )
    )
    return event | rest


@st.composite
def removals(draw: st.DrawFn) -> dict[str, object]:
    spaces = st.sampled_from([(), ("lora", None), (None, "salt"), ("lora", "salt")])
    gone = draw(st.lists(st.tuples(prefixes, spaces), max_size=6))
    return {
        "type": "BlockRemoved",
        "block_hashes": [digest(*prefix, *space) for prefix, space in gone],
        "medium": draw(st.sampled_from([None, "GPU", "GPU", "CPU", "DISK"])),
        "group_idx": draw(st.sampled_from([None, 0, 0, 0, 1])),
    }


def as_array(event: dict[str, object]) -> list[object]:
    fields = FIELDS if event["type"] == "BlockStored" else ("block_hashes", "medium", "group_idx")
    return [event["type"], *(event.get(name) for name in fields)]


known = st.one_of(stores(), stores(), stores(), removals())
events = st.one_of(
    known,
    known.map(as_array),
    known,
    st.sampled_from(
        [{"type": "AllBlocksCleared"}, ["AllBlocksCleared"], ["Odd", 1], {"type": "New"}]
    ),
)
batches = st.lists(events, max_size=3).map(lambda reported: encode([1.5, reported, 0]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), batches),
        st.tuples(st.just("take"), batches),
        st.tuples(st.just("take"), batches),
        st.tuples(st.just("take"), batches),
        st.sampled_from([("lose",), ("restart",), ("dump",), ("save",), ("save",)]),
    ),
    max_size=25,
)


def play(twins: Twins, plan: list[tuple[object, ...]]) -> None:
    for name, *args in plan:
        if name == "save":
            twins.save_and_load()
            continue
        reported = twins.tell(str(name), *args)
        if isinstance(reported, str):
            twins.tell("lose")
    twins.tell("dump")


@given(steps, st.sampled_from([None, 2, 4, 0]), st.sampled_from([b"", b"secret"]))
def test_both_say_the_same_of_any_engine(
    plan: list[tuple[object, ...]], size: int | None, secret: bytes
) -> None:
    play(Twins(size, secret=secret), plan)


@given(steps, st.sampled_from([None, 2, 4]), st.sampled_from([NaiveEngineCache, EngineCache]))
def test_who_goes_on_from_what_was_saved_holds_what_the_other_does(
    plan: list[tuple[object, ...]],
    size: int | None,
    made: type[NaiveEngineCache] | type[EngineCache],
) -> None:
    kept, going_on = made(size), made(size)
    for name, *args in plan:
        if name == "save":
            saved = going_on.save()
            if saved is not None:
                going_on = made(size)
                going_on.load(saved)
            continue
        for cache in (kept, going_on):
            try:
                getattr(cache, str(name))(*args)
            except CodecError:
                cache.lose()
        assert going_on.dump() == kept.dump()
        assert going_on.block_size == kept.block_size


@given(steps, st.data())
def test_both_load_or_refuse_the_same_damaged_blocks(
    plan: list[tuple[object, ...]], data: st.DataObject
) -> None:
    twins = Twins(2)
    with narrow():
        twins = Twins(2)
        play(twins, plan)
        saved = twins.naive.save()
        if saved is None or not saved.blocks:
            return
        damaged = bytearray(saved.blocks)
        for position in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=4)):
            damaged[position] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
        hostile = msgspec.structs.replace(saved, blocks=bytes(damaged[:cut]))
        loaded = []
        for cache in (twins.naive, twins.compiled):
            try:
                loaded.append(cache.load(hostile))
            except CodecError:
                cache.lose()
                loaded.append([])
        assert loaded[0] == loaded[1]
        assert twins.naive.complete == twins.compiled.complete


FOUR_ENDS: dict[str, object] = {
    "type": "BlockStored",
    "block_hashes": [1, 2, 3, 4],
    "parent_block_hash": None,
    "token_ids": list(range(8)),
    "block_size": 2,
    "kv_cache_spec_kind": "sliding_window",
}
"""Its ends are more than a narrow run has."""


@given(steps, st.integers(0, 3))
@example([("take", encode([1.5, [FOUR_ENDS], 0]))], 0)
def test_both_say_the_same_where_there_is_room_for_little(
    plan: list[tuple[object, ...]], hidden: int
) -> None:
    with narrow():
        play(Twins(2, hidden=hidden), plan)


@given(batches | st.sampled_from(PUBLISHED), st.data())
def test_both_take_or_refuse_the_same_damaged_bytes(payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(payload)
    for position in data.draw(st.lists(st.integers(0, len(payload) - 1), max_size=4)):
        damaged[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))

    play(Twins(), [("take", bytes(damaged[:cut])), ("take", payload)])


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("secret", [b"", b"secret"])
def test_both_follow_a_capture_alike(name: str, secret: bytes) -> None:
    twins = Twins(secret=secret)

    lines = (FIXTURES / name).read_text().splitlines()
    play(twins, [("take", bytes.fromhex(json.loads(line)["hex"])) for line in lines])


def test_both_read_every_published_schema_alike() -> None:
    twins = Twins()
    for payload in PUBLISHED:
        twins.tell("take", payload)


def test_ordinary_schemas_do_not_need_the_python_decoder() -> None:
    twins = Twins()
    read_by_hand: list[bytes] = []
    with mock.patch.object(twins.compiled, "_decode", read_by_hand.append):
        for payload in ORDINARY:
            twins.tell("take", payload)

    assert read_by_hand == []


contents = st.integers(0, 3)
decoded: st.SearchStrategy[EngineEvent] = st.one_of(
    st.builds(
        lambda hashes, parent, tier, salt, extras: EngineStored(
            tuple(hashes),
            parent,
            b"".join((one + 5).to_bytes(4, "little") for one in hashes),
            1,
            tier=tier,
            salt=salt,
            extras=tuple(hashes) if extras else (),
        ),
        st.lists(contents, min_size=1, max_size=3),
        st.none() | contents,
        st.integers(0, 3),
        st.sampled_from([None, "a"]),
        st.booleans(),
    ),
    st.builds(
        lambda hashes, tier: EngineRemoved(tuple(hashes), tier),
        st.lists(contents),
        st.integers(0, 3),
    ),
    st.just(EngineCleared()),
)


@given(st.lists(st.lists(decoded, max_size=3), max_size=20))
def test_both_fold_what_another_dialect_decodes_alike(reported: list[list[EngineEvent]]) -> None:
    def decode(payload: bytes) -> EngineBatch:
        return EngineBatch(0.0, 0, tuple(reported[payload[0]]))

    naive, compiled = NaiveEngineCache(1, decode=decode), EngineCache(1, decode=decode)
    for number in range(len(reported)):
        payload = bytes([number])
        assert compiled.take(payload) == naive.take(payload)
        assert compiled.dump() == naive.dump()
    assert compiled.statistics() == naive.statistics()


class Life:
    """An engine that stores and evicts for long: what it says is chosen by a seed."""

    def __init__(self, seed: int, *, width: int, depth: int) -> None:
        self._rng = random.Random(seed)
        self._width, self._depth = width, depth

    def _prefix(self) -> list[int]:
        rng = self._rng
        return [rng.randrange(self._width) for _ in range(rng.randrange(1, self._depth))]

    def _space(self) -> tuple[str | None, tuple[str, ...]]:
        """Return a salt, and what an engine hash covers of it."""
        salt = self._rng.choice([None, None, None, "a", "b", "c"])
        return salt, ((salt,) if salt and self._rng.random() < 0.5 else ())

    def next(self) -> EngineEvent:
        rng, prefix = self._rng, self._prefix()
        salt, space = self._space()
        start = rng.randrange(len(prefix)) if rng.random() < 0.5 else 0
        run = [digest(*prefix[: end + 1], *space) for end in range(start, len(prefix))]
        tier = rng.choice([0, 0, 0, 0, 1, 2])
        kind = rng.random()
        if kind < 0.45:
            rng.shuffle(run)
            return EngineRemoved(tuple(run[: rng.randrange(1, 4)]), tier)
        if kind < 0.451:
            return EngineCleared()
        size = rng.choice([1, 1, 1, 1, 2])
        packed = array("I", [block + 5 for block in prefix[start:] for _ in range(size)])
        return EngineStored(
            tuple(run),
            digest(*prefix[:start], *space) if start else None,
            packed.tobytes() if rng.random() < 0.9 else b"",
            size,
            tier=tier,
            salt=salt,
            extras=tuple(rng.choice([0, 0, 7]) for _ in run) if rng.random() < 0.05 else (),
        )


def live(seed: int, steps: int, *, width: int, depth: int, hidden: int) -> EngineCacheStatistics:
    life = Life(seed, width=width, depth=depth)
    batch: list[EngineEvent] = []

    def decode(_payload: bytes) -> EngineBatch:
        return EngineBatch(0.0, 0, tuple(batch))

    naive = NaiveEngineCache(1, decode=decode, max_hidden=hidden)
    compiled = EngineCache(1, decode=decode, max_hidden=hidden)
    for step in range(steps):
        batch[:] = [life.next() for _ in range(3)]
        assert compiled.take(b"") == naive.take(b"")
        if step % 100 == 0:
            assert compiled.statistics() == naive.statistics()
            assert compiled.dump() == naive.dump()
    assert compiled.statistics() == naive.statistics()
    return naive.statistics()


@pytest.mark.parametrize("seed", range(4))
def test_both_follow_a_long_life_alike(seed: int) -> None:
    seen = live(seed, 600, width=9, depth=6, hidden=10_000)

    assert seen.visible_blocks > 100


@pytest.mark.parametrize("seed", range(4))
def test_both_follow_a_long_life_with_little_room_alike(seed: int) -> None:
    with narrow():
        seen = live(seed, 600, width=3, depth=5, hidden=1)

    assert seen.residency.crowded > 0
    assert seen.residency.orphans > 0


def test_both_keep_many_children_of_one_block_and_close_gaps_alike() -> None:
    naive, compiled = NaiveEngineCache(1), EngineCache(1)
    payloads = [encode([0.0, [["BlockStored", [1], None, [1], 1]], 0])]
    payloads += [
        encode([0.0, [["BlockStored", [number], 1, [number], 1]], 0]) for number in range(2, 6000)
    ]
    rng = random.Random(1)
    gone = list(range(2, 6000))
    rng.shuffle(gone)
    payloads += [encode([0.0, [["BlockRemoved", gone[:2000]]], 0])]
    payloads += [encode([0.0, [["BlockRemoved", [1]]], 0])]
    payloads += [encode([0.0, [["BlockRemoved", gone[2000:5000]]], 0])]
    payloads += [encode([0.0, [["BlockStored", [9001, 9002], None, [1, 7], 1, None, "CPU"]], 0])]
    payloads += [payloads[0]]
    for payload in payloads:
        assert compiled.take(payload) == naive.take(payload)
    assert compiled.statistics() == naive.statistics()
    assert compiled.dump() == naive.dump()
