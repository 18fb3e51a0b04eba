"""What a wrong call of the compiled core says: the function, the argument and what it must be."""

from collections.abc import Callable
from typing import Any

import pytest

from kvmesh import _native

native: Any = _native

WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "one left out": (lambda: native.Speeds(tuple), TypeError, "Speeds needs prior_ms_per_token"),
    "one too many": (
        lambda: native.Ratio().fold(1.0, 2.0, 3.0, 4.0),
        TypeError,
        "fold takes 3 arguments by place, not 4: ms tokens half_life",
    ),
    "a name it has not": (
        lambda: native.StepTimes().fold(tokens=1.0, millis=2.0),
        TypeError,
        "fold has no argument 'millis', or has it twice: it takes tokens ms",
    ),
    "one twice": (
        lambda: native.StepTimes().fold(1.0, tokens=2.0),
        TypeError,
        "fold has no argument 'tokens', or has it twice: it takes tokens ms",
    ),
    "by place what has to be named": (
        lambda: native.ActiveSequences(16, dict, tuple),
        TypeError,
        "ActiveSequences takes 1 arguments by place, not 3: block_size turns statistics lease_s",
    ),
    "a text for a number": (
        lambda: native.StepTimes().fold("1", 2.0),
        TypeError,
        "fold: tokens is '1', it must be a float",
    ),
    "a number for a text": (
        lambda: native.Peer(1, 1, 0.0),
        TypeError,
        "Peer: name is 1, it must be a str",
    ),
    "a list for a tuple": (
        lambda: native.TextCutter([], frozenset()),
        TypeError,
        "TextCutter: tokens is [], it must be a tuple",
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
