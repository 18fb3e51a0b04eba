"""Well-formed engine events, chosen by bytes: they reach what random bytes never do."""

from collections.abc import Iterator

import msgspec

TOKENS_A_BLOCK = 4
MAX_BATCHES = 24
STORED = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
)
MEDIA = (None, "GPU", "CPU", "CPU_PINNED", "STORAGE", "odd")
KINDS = (None, "full_attention", "sliding_window", "mamba")
NAMES = (None, "adapter", "")
KEYS: tuple[object, ...] = (None, [None], [["salt"]], [["adapter", "salt"]], [[["image", 3]]], [])


class Chooser:
    """Gives the bytes out one by one; 0 when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._data)

    def below(self, limit: int) -> int:
        if self.is_empty:
            return 0
        self._at += 1
        return self._data[self._at - 1] % limit


def build_batches(data: bytes) -> list[bytes]:
    """Return batches of events as an engine could send them, right or wrong."""
    chooser = Chooser(data)
    batches: list[bytes] = []
    while not chooser.is_empty and len(batches) < MAX_BATCHES:
        events = [_event(chooser) for _ in range(1 + chooser.below(4))]
        batches.append(msgspec.msgpack.encode([1.5, events, chooser.below(3) or None]))
    return batches


def _event(chooser: Chooser) -> object:
    kind = chooser.below(8)
    if kind == 7:
        return ["AllBlocksCleared"] if chooser.below(2) else {"type": "AllBlocksCleared"}
    if kind >= 5:
        hashes = [chooser.below(12) for _ in range(1 + chooser.below(3))]
        medium, group = MEDIA[chooser.below(6)], chooser.below(3) or None
        if chooser.below(2):
            return ["BlockRemoved", hashes, medium, group]
        removed = {"type": "BlockRemoved", "block_hashes": hashes}
        return removed | {"medium": medium, "group_idx": group}
    return _stored(chooser)


def _stored(chooser: Chooser) -> object:
    count = 1 + chooser.below(3)
    size = (TOKENS_A_BLOCK, TOKENS_A_BLOCK, 2 * TOKENS_A_BLOCK, 3)[chooser.below(4)]
    first = chooser.below(12)
    tokens = [first + number // size for number in range(count * size)]
    values = (
        [first + number for number in range(count)],
        chooser.below(13) or None,
        tokens if chooser.below(8) else [],
        size,
        chooser.below(3) or None,
        MEDIA[chooser.below(6)],
        NAMES[chooser.below(3)],
        KEYS[chooser.below(6)],
        chooser.below(3) or None,
        KINDS[chooser.below(4)],
    )
    if chooser.below(2):
        return ["BlockStored", *values[: 4 + chooser.below(7)]]
    named = {"type": "BlockStored"} | dict(zip(STORED, values, strict=True))
    return {name: value for name, value in named.items() if value is not None}


def odd_batches() -> Iterator[bytes]:
    """Yield batches that are read field by field, each with one thing that engines seldom send."""
    for tokens in ([[1, 2], [3, 4, "x"]], [[1, {"a": 2}], [2]], [[1], 2], [[], [1]], ["1", 2], [1]):
        yield _batch(["BlockStored", [5], None, tokens, 2])
    many = [*range(20)]
    for keys in (
        [many],
        ["salt"],
        [7],
        many,
        [[*many, "salt"]],
        [[1.5, None, True, -9]],
        [{"a": 1}],
    ):
        yield _batch(["BlockStored", [5], None, [1, 2], 2, None, "GPU", None, keys])
        yield _batch(_named(extra_keys=keys, cache_salt="s"))
        yield _batch(_named(mm_keys=keys))
    yield _batch(["BlockStored", [5], None, [1, 2], 2, *(None,) * 30])
    yield _batch(["BlockRemoved", [b"", b"12", b"123456789"]])
    yield _batch(["BlockRemoved", [-1, -(2**40), 2**63, 200, 70_000]])
    for more in ({"locality": "REMOTE"}, {"block_size": None}, {"block_size": 1 << 40}, {"odd": 1}):
        yield _batch(_named(**more))
    for more in ({"group_idx": "x"}, {"window": -1}, {"medium": "\xfc"}, {"medium": "m" * 300}):
        yield _batch(_named(**more))
    for name in ("type", "odd", "block_hashes"):
        twice = msgspec.msgpack.encode({name: "BlockRemoved"})[1:]
        yield b"\x92\x01\x91\x83" + 2 * twice + msgspec.msgpack.encode({"block_hashes": [1]})[1:]
    yield b"\x92\x01\x91\x81\x01\x02"
    yield b"\x92\x01\x91\x92\xacBlockRemoved\x91\x81\x01\x02"
    for ends in ([0], [0, 1, {"a": [2]}], ["x"], [None, {1: 2}], [None, "\xfc"]):
        yield msgspec.msgpack.encode([1.5, [["AllBlocksCleared"]], *ends])
    whole = _batch(_named(lora_id=70_000, extra_keys=[["salt", 70_000]]))
    for end in range(1, len(whole)):
        yield whole[:end]


def _batch(event: object) -> bytes:
    return msgspec.msgpack.encode([1.5, [event], 0])


def _named(**more: object) -> dict[str, object]:
    stored = {"type": "BlockStored", "block_hashes": [5], "parent_block_hash": None}
    return stored | {"token_ids": [1, 2], "block_size": 2} | more
