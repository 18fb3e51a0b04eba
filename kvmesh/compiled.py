"""The compiled core of `kvmesh/native/`, where this installation has it: the same answers, sooner.

`KVMESH_CORE=pure` in the environment forbids it, to this process and its children.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

VARIABLE: Final = "KVMESH_CORE"
VERSION: Final = 8
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
        prompt tokens, blocks of the prompt, blocks of its output, stride of its keys, now, the
        fleet's ms per token, a step's tokens, arrivals per ms, margin, its keys, and what tells
        the wait for memory of a worker that is almost full. Raises `ZeroDivisionError`.
        """
        ...


class Native(Protocol):
    """What `kvmesh._native` has."""

    def Table(self) -> object:  # noqa: N802  a type
        """Return an empty `core.index.block_table.Table`."""
        ...

    def Loads(self, worker: str) -> object:  # noqa: N802  a type
        """Return a `core.workers.loads.Loads` without any load."""
        ...

    def Ratio(self, ms: float = 0.0, tokens: float = 0.0) -> object:  # noqa: N802  a type
        """Return a `core.workers.relative_speed.Ratio`."""
        ...

    def WorkerState(  # noqa: N802  a type
        self, worker: str, loads: object, prefill: object, info: object, report: object
    ) -> object:
        """Return a `core.workers.state.WorkerState` of native loads and ratios."""
        ...

    def Formula(  # noqa: N802  a type
        self, price: tuple[object, ...], failure: tuple[object, ...], /
    ) -> NativeFormula:
        """Return a formula and the price of failure to run, as `core.cost.expression.Step` says;
        a weight is its place among the weights. Raises `ValueError`.
        """
        ...

    def find_home(self, names: Sequence[str], overlaps: object, blocks: Sequence[int], /) -> int:
        """Return `core.cost.selection.pure_find_home`."""
        ...

    def chain(
        self, seed: int, packed: bytes | memoryview, start: int, width: int, count: int, /
    ) -> list[int]:
        """Return the hashes of blocks of a buffer, each seeded with the one before."""
        ...

    def chain_tokens(
        self, seed: int, tokens: Sequence[int], first: int, size: int, count: int, /
    ) -> bytes | None:
        """Return the same of a list of tokens, as native u64s; None: someone should look closer."""
        ...

    def pack_chain(
        self, seed: int, tokens: bytes | memoryview | str, first: int, size: int, count: int, /
    ) -> bytes:
        """Return the hashes of blocks of u32s, or of code points, as native u64s."""
        ...

    def scan_json(
        self, data: bytes | memoryview, state: int, depth: int, /
    ) -> tuple[int, int, int, int, int]:
        """Return `core.prompts.json_size.pure_scan_json`."""
        ...

    def EventStream(self, make: object, find_usage: object, /) -> object:  # noqa: N802  a type
        """Return a `core.engines.event_stream.EventStream`; `make` makes a pure one."""
        ...

    def match_head(
        self, data: bytes, before: bytes, behind: bytes | None, most: int, /
    ) -> bytes | None:
        """Return `transport.http.wire.headers.pure_match_head`."""
        ...

    def render(self, headers: Sequence[tuple[bytes, bytes]], /) -> bytes:
        """Return `transport.http.wire.headers.pure_render`."""
        ...

    def match_dated(self, data: bytes, before: bytes, after: bytes, /) -> int:
        """Return `transport.http.upstream.response_head.pure_match_dated`."""
        ...


def find_native(wish: str) -> tuple[Native | None, str]:
    """Return the compiled core or None, and which core that makes, in words."""
    if wish not in {"", "native"}:
        return None, f"pure ({VARIABLE}={wish})"
    try:
        found = import_module("kvmesh._native")
    except ImportError as error:
        return None, f"pure ({error}; with a C compiler `pip install` builds the native one)"
    if found.VERSION != VERSION:
        return None, f"pure (native is {found.VERSION}, not {VERSION}: `pip install` it anew)"
    return cast("Native", found), "native"


NATIVE, CORE = find_native(os.environ.get(VARIABLE, ""))
