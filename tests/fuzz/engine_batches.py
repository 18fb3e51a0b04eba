"""Well-formed engine events, chosen by bytes: they reach what random bytes never do."""

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
