"""An engine's load in the form that every kind's figures are brought into."""

from collections.abc import Callable, Mapping
from math import nan
from typing import Final, Literal, assert_never

import msgspec

from kvmesh.bounds import MAX_COUNT, MAX_NAMES, MAX_TOKENS, clamped, is_name, whole_number

MAX_RANKS: Final = 1024
"""Data-parallel ranks of one engine: what it says of more is not heard."""


class EngineFigures(msgspec.Struct, frozen=True):
    """One rank's load. Tokens are KV cache slots, but for `waiting_tokens`: uncached prompt tokens.

    `prefilled_tokens` (uncached ones) and `prefill_busy_us` are totals since the engine started;
    together they are its measured prefill speed. `prefix_hit_rate` is a share of prompt tokens,
    0..1; `adapter_slots` LoRA adapters are in memory at a time. `computed_tokens` changes with each
    step that computes tokens. None and 0: not told.
    """

    running_requests: int
    waiting_requests: int
    used_tokens: int
    total_tokens: int
    rank: int = 0
    waiting_tokens: int | None = None
    prefilled_tokens: int = 0
    prefill_busy_us: int = 0
    total_slots: int = 0
    prefix_hit_rate: float = 0.0
    adapter_slots: int = 0
    computed_tokens: int | None = None


class LoadStream(msgspec.Struct, frozen=True):
    """A ZMQ stream of one rank's load: its topic, and what reads a message.

    `decode` raises `CodecError`.
    """

    topic: str
    decode: Callable[[bytes], EngineFigures]


Figure = Literal[
    "running",
    "waiting",
    "usage",
    "block_size",
    "total_blocks",
    "total_tokens",
    "queried",
    "hit",
    "adapter_slots",
    "adapters",
    "computed",
]


class Gauge(msgspec.Struct, frozen=True):
    """What one series of /metrics tells: its value, or the number in one of its labels.

    Of several series with the same figure and rank counts are added up, the largest usage counts,
    and the last size. The label of `adapters` lists names, and the value is when that was so: the
    latest counts. `computed` counts tokens, or steps, as they are computed.
    """

    figure: Figure
    label: str = ""


class Gauges:
    """The figures of one rank out of /metrics."""

    def __init__(self) -> None:
        self.running = 0.0
        self.waiting = 0.0
        self.usage = 0.0
        self.total_blocks = 0
        self.total_tokens = 0
        self.block_size = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.adapter_slots = 0
        self.computed: float | None = None
        self.adapters: dict[str, tuple[str, ...]] = {}
        self._adapters_s: dict[str, float] = {}

    def take(self, gauge: Gauge, value: float, labels: Mapping[str, str]) -> None:  # noqa: C901, PLR0912 - a case a figure
        """Fold one sample; what is no number, or none that can be, counts as 0 or as the most."""
        if gauge.figure == "adapters":
            self._take_names(gauge.label, value, labels)
            return
        if gauge.figure == "computed":
            # NaN from the first one that is no count on: then nothing is known of the sum.
            count = value if 0.0 <= value < MAX_COUNT else nan
            self.computed = (self.computed or 0.0) + count
            return
        if gauge.label:
            value = whole_number(labels.get(gauge.label, ""), 0, MAX_COUNT) or 0
        value = min(max(0.0, value), MAX_COUNT)  # in this order NaN is 0
        match gauge.figure:
            case "running":
                self.running = min(self.running + value, MAX_COUNT)
            case "waiting":
                self.waiting = min(self.waiting + value, MAX_COUNT)
            case "usage":
                self.usage = max(self.usage, min(value, 1.0))
            case "block_size":
                self.block_size = clamped(value, 0, MAX_TOKENS)
            case "total_blocks":
                self.total_blocks = int(value)
            case "total_tokens":
                self.total_tokens = int(value)
            case "queried":
                self.queried_tokens = int(value)
            case "hit":
                self.hit_tokens = int(value)
            case "adapter_slots":
                self.adapter_slots = int(value)
            case _:
                assert_never(gauge.figure)

    @property
    def computed_tokens(self) -> int | None:
        """Return the sum of what counts computed tokens; None: not shown, or no count."""
        computed = self.computed
        return None if computed is None or not computed < MAX_COUNT else int(computed)

    def _take_names(self, label: str, at_s: float, labels: Mapping[str, str]) -> None:
        """Note the names in a label, unless later ones are known; what is no name is left out."""
        if at_s >= self._adapters_s.get(label, 0.0):
            self._adapters_s[label] = at_s
            names = (name.strip() for name in labels.get(label, "").split(","))
            self.adapters[label] = tuple(filter(is_name, names))[:MAX_NAMES]
