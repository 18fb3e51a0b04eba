"""What a wrong call of the compiled core says: the function, the argument and what it must be."""

from collections.abc import Callable
from typing import Any

import pytest

from kvmesh import _native
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import new_sequences

native: Any = _native
SEQUENCES: Any = new_sequences(16)
LOADS: Any = SEQUENCES.loads(WorkerId("w"))

WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "one left out": (native.Speeds, TypeError, "Speeds needs prior_ms_per_token"),
    "one too many": (
        lambda: SEQUENCES.expire(1.0, 2.0),
        TypeError,
        "expire takes 1 arguments by place, not 2: now",
    ),
    "a name it has not": (
        lambda: LOADS.wait_ms(1.0, then=2.0),
        TypeError,
        "wait_ms has no argument 'then', or has it twice: it takes ms_per_token now step_tokens",
    ),
    "one twice": (
        lambda: SEQUENCES.renew_owner("", owner=""),
        TypeError,
        "renew_owner has no argument 'owner', or has it twice: it takes owner now",
    ),
    "by place what has to be named": (
        lambda: native.ActiveSequences(16, tuple),
        TypeError,
        "ActiveSequences takes 1 arguments by place, not 2: block_size statistics lease_s",
    ),
    "a text for a number": (
        lambda: LOADS.wait_ms("1", 2.0),
        TypeError,
        "wait_ms: ms_per_token is '1', it must be a float",
    ),
    "a number for a text": (
        lambda: native.Peer(1, 1, 0.0),
        TypeError,
        "Peer: name is 1, it must be a str",
    ),
    "a list for a tuple": (
        lambda: native.Formula([], ()),
        TypeError,
        "Formula: price is [], it must be a tuple",
    ),
    "a text for bytes": (
        lambda: native.Names([], "x"),
        TypeError,
        "Names: prefix is 'x', it must be bytes",
    ),
    "an object of another type": (
        lambda: native.BookingOutbox(None, 1),
        TypeError,
        "BookingOutbox: sequences is None, it must be kvmesh._native.ActiveSequences",
    ),
    "a number beyond 64 bits": (
        lambda: native.PrefixCounts(1 << 63),
        OverflowError,
        "PrefixCounts: max_nodes is 9223372036854775808, it must be an int from -2^63 to 2^63-1",
    ),
    "a number below 0": (
        lambda: native.rekey(1, -1, 1),
        OverflowError,
        "rekey: first is -1, it must be an int from 0 to 2^64-1",
    ),
    "a float for an int": (
        lambda: native.TextCache(1.5),
        TypeError,
        "TextCache: capacity is 1.5, it must be an int from -2^63 to 2^63-1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_names_the_function_the_argument_and_what_it_must_be(case: str) -> None:
    call, kind, message = WRONG[case]

    with pytest.raises(kind) as caught:
        call()

    assert str(caught.value) == message


def test_what_an_argument_raises_itself_is_not_replaced() -> None:
    class Broken:
        def __index__(self) -> int:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        native.TextCache(Broken())
