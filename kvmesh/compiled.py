"""The compiled core of `kvmesh/native/`, where this installation has it: the same answers, sooner.

`KVMESH_CORE=pure` in the environment forbids it, to this process and its children.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, Protocol, cast

VARIABLE: Final = "KVMESH_CORE"
VERSION: Final = 15
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/core.h."""


class NativeFormula(Protocol):
    """A cost formula, ready to run."""

    def find_ties(
        self,
        states: tuple[object, ...],
        known: object,
        overlaps: object,
        request: tuple[object, ...],
        weights: tuple[float, ...],
        /,
    ) -> list[str]:
        """Return the workers of the least cost.

        `known` has states by name; only what is in it has any overlap. `request`: block size,
        prompt tokens, blocks of the prompt, blocks of its output, now, the
        fleet's ms per token, a step's tokens, arrivals per ms, margin, its keys, and what tells
        the wait for memory of a worker that is almost full. Raises `ZeroDivisionError`.
        """
        ...


class NativeDecider(Protocol):
    """The request path (kvmesh/native/decider.c)."""

    decisions: int
    overlap_blocks: int
    request_blocks: int

    def follow(self, *course: object) -> None:
        """Decide from now on by: a Course, two TTLs in seconds."""
        ...

    def resize(self, block_size: int, /) -> None:
        """Decide by blocks of so many tokens."""
        ...

    def tell(self, outbox: object, /) -> None:
        """Have a BookingOutbox told of bookings from now on; None: nobody."""
        ...

    def decide(self, *asked: object) -> Any:  # noqa: ANN401  a Placed
        """Return a `core.dispatch.compiled.Placed`, None for what has to go another way, the wait,
        ms, where that is too long. Asked is: what was scanned, packed ids or None, id, tenant,
        states of all, now, whether to keep all, name, Course, states, output tokens or -1, longest
        wait, seed of the first block.
        """
        ...

    def runners_up(self, states: tuple[Any, ...], most: int, /) -> Any:  # noqa: ANN401  names
        """Return names of workers, the best first; None where the last decision has none."""
        ...

    def seen(self, placed: Any, tokens: int, now: float, /) -> bool:  # noqa: ANN401
        """Take the tokens of an answer so far; return whether they were the first."""
        ...

    def finish(self, placed: Any, status: int, usage: object, now: float, /) -> Any:  # noqa: ANN401
        """Return the booking the first time, else None, and whether nothing speaks against its
        worker.
        """
        ...


class Native(Protocol):
    """What `kvmesh._native` has."""

    def Peer(self, name: str, epoch: int, now: float) -> object:  # noqa: N802  a type
        """Return a `core.routing.peers.peer.Peer` of which nothing was heard yet."""
        ...

    def MessageFold(self, **parts: object) -> object:  # noqa: N802  a type
        """Return a `core.routing.peers.message_fold.MessageFold`."""
        ...

    def OutputLengths(  # noqa: N802  a type
        self, forecast: type, statistics: type, block_size: int, max_families: int
    ) -> object:
        """Return a `core.routing.output_lengths.OutputLengths` that answers in these types."""
        ...

    def Formula(  # noqa: N802  a type
        self, price: tuple[object, ...], failure: tuple[object, ...], /
    ) -> NativeFormula:
        """Return a formula and the price of failure to run, as `core.cost.expression.Step` says;
        a weight is its place among the weights. Raises `ValueError`.
        """
        ...

    def Record(  # noqa: N802  a type
        self, request_id: bytes, decision: object, hashes: object, decided_s: float
    ) -> object:
        """Return a `core.insight.decision_record.DecisionRecord`."""
        ...

    def Ring(  # noqa: N802  a type
        self,
        capacity: int,
        max_waiting_blocks: int,
        max_candidates: int,
        whole_per_s: int,
        thin: object,
    ) -> object:
        """Return a `core.insight.decision_record.RecordRing` of native records."""
        ...

    def Totals(self, kept_s: int, bounds: Sequence[float]) -> object:  # noqa: N802  a type
        """Return `core.insight.totals.Totals` of native records."""
        ...

    def TokenCounts(self) -> object:  # noqa: N802  a type
        """Return `core.insight.totals.TokenCounts`, all 0."""
        ...

    def PrefixCounts(self, max_nodes: int) -> object:  # noqa: N802  a type
        """Return `core.insight.hot_prefixes.PrefixCounts`."""
        ...

    def RoundRobinShadow(self, max_entries: int) -> object:  # noqa: N802  a type
        """Return a `core.insight.round_robin_shadow.RoundRobinShadow`."""
        ...

    def RequestEnds(self) -> object:  # noqa: N802  a type
        """Return `app.serve.request_ends.EndCounts` of nothing."""
        ...

    def find_home(self, names: Sequence[str], overlaps: object, blocks: Sequence[int], /) -> int:
        """Return `core.cost.selection.pure_find_home`."""
        ...

    def scan_json(
        self, data: bytes | memoryview, state: int, depth: int, /
    ) -> tuple[int, int, int, int, int]:
        """Return `core.prompts.json_size.pure_scan_json`."""
        ...

    def BookingOutbox(self, sequences: object, epoch: int) -> object:  # noqa: N802  a type
        """Return an empty `core.routing.peers.outbox.BookingOutbox`; `sequences` are native."""
        ...

    def Decider(self, **parts: object) -> NativeDecider:  # noqa: N802  a type
        """Return what decides by state that others look at, too: `core.dispatch.compiled`."""
        ...

    def Course(self, *parts: object) -> object:  # noqa: N802  a type
        """Return what requests are decided by: mode, whether caches count whatever it is, formula,
        weights, margin, the policy's name, what makes a Decision of a Record, what draws by costs
        or None. Raises `ValueError`.
        """
        ...

    def EngineCache(  # noqa: N802  a type
        self,
        block_size: int | None,
        secret: bool,
        farthest: int,
        names: tuple[object, ...],
        types: tuple[type, ...],
        limits: tuple[int, int, int, int, int],
        /,
    ) -> object:
        """Return a `core.engines.kv_events.compiled.NativeCache` that holds nothing.

        `names`: tiers by medium, kinds of full attention, what makes a namespace's root, the three
        types of engine events. `limits`: most blocks, twins, references of a block, hidden blocks,
        hashes of an event.
        """
        ...

    def GroupTable(  # noqa: N802  a type
        self,
        stored: type,
        removed: type,
        most_blocks: int,
        most_references: int,
        max_hidden: int,
        max_run: int,
        /,
    ) -> object:
        """Return a `core.engines.kv_events.groups.compiled.NativeTable` that holds nothing."""
        ...

    def EventStream(self, make: object, find_usage: object, /) -> object:  # noqa: N802  a type
        """Return a `core.engines.event_stream.EventStream`; `make` makes a pure one."""
        ...


def find_native(wish: str) -> tuple[Native | None, str]:
    """Return the compiled core or None, and which core that makes, in words."""
    if wish not in {"", "native"}:
        return None, f"pure ({VARIABLE}={wish})"
    try:
        found = import_module("kvmesh._native")
    except ImportError as error:
        return None, f"pure ({error}; `pip install` builds the native one)"
    if found.VERSION != VERSION:
        return None, f"pure (native is {found.VERSION}, not {VERSION}: `pip install` it again)"
    return cast("Native", found), "native"


NATIVE, CORE = find_native(os.environ.get(VARIABLE, ""))
