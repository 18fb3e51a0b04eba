"""Nothing that Python code may hand to the compiled reader and writer harms the process."""

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.measure import resident_bytes
from kvmesh import _native
from kvmesh.errors import CodecError
from kvmesh.transport.extproc.messages import KINDS, Modes
from tests.fuzz.extproc_targets import seeds

core: Any = _native
TYPES = (*KINDS, Modes, CodecError)
HEAD, ANSWERED, *_ = seeds("extproc")


class Refusing:
    """A type that cannot be made."""

    def __init__(self, *_: object) -> None:
        raise RuntimeError("no")


def endless() -> Iterator[tuple[bytes, bytes]]:
    yield (b"a", b"b")
    raise RuntimeError("no")


class Sized(bytes):
    """Bytes that lie about their length."""

    def __len__(self) -> int:
        return 1 << 40


MISUSES: dict[str, Callable[[], object]] = {
    "read nothing": core.read_extproc,
    "read without types": lambda: core.read_extproc((), HEAD),
    "read with a list of types": lambda: core.read_extproc([*TYPES], HEAD),
    "read text": lambda: core.read_extproc(TYPES, "text"),
    "read a view": lambda: core.read_extproc(TYPES, memoryview(HEAD)),
    "read into what is no type": lambda: core.read_extproc((1,) * 7 + (CodecError,), HEAD),
    "read with what is no error": lambda: core.read_extproc((*KINDS, Modes, int), b"\xff"),
    "read into what refuses": lambda: core.read_extproc((Refusing,) * 7 + (CodecError,), HEAD),
    "read modes that refuse": lambda: core.read_extproc((*KINDS, Refusing, CodecError), HEAD),
    "write nothing": core.write_extproc,
    "write no field": lambda: core.write_extproc(0, (), (), None, None),
    "write a field beyond": lambda: core.write_extproc(16, (), (), None, None),
    "write a field beyond all": lambda: core.write_extproc(1 << 80, (), (), None, None),
    "write a word": lambda: core.write_extproc("1", (), (), None, None),
    "write no headers": lambda: core.write_extproc(1, None, (), None, None),
    "write half a header": lambda: core.write_extproc(1, [(b"a",)], (), None, None),
    "write a text header": lambda: core.write_extproc(1, [("a", b"b")], (), None, None),
    "write a list header": lambda: core.write_extproc(1, [[b"a", b"b"]], (), None, None),
    "write headers that raise": lambda: core.write_extproc(1, endless(), (), None, None),
    "remove text": lambda: core.write_extproc(1, (), ("a",), None, None),
    "remove nothing": lambda: core.write_extproc(1, (), None, None, None),
    "a text endpoint": lambda: core.write_extproc(1, (), (), "10.0.0.1:80", None),
    "a text body": lambda: core.write_extproc(1, (), (), None, "body"),
    "a piece of nothing": core.write_extproc_piece,
    "a piece of text": lambda: core.write_extproc_piece(1, "text", False),
    "a piece of no field": lambda: core.write_extproc_piece(-1, b"", False),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_error(misuse: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError, OverflowError)):
        MISUSES[misuse]()


def test_bytes_that_lie_about_their_length_are_taken_as_they_are() -> None:
    assert core.write_extproc_piece(1, Sized(b"ab"), False) == core.write_extproc_piece(
        1, b"ab", False
    )


def test_reading_and_writing_leaks_nothing() -> None:
    def work(times: int) -> None:
        for _ in range(times):
            for data in (HEAD, ANSWERED, HEAD[:-3], b"\xff"):
                with contextlib.suppress(CodecError):
                    core.read_extproc(TYPES, data)
            core.write_extproc(1, [(b"a", b"b" * 500)], (b"c",), b"10.0.0.1:80", b"x" * 500)
            core.write_extproc_piece(1, b"x" * 5000, True)
            for misuse in ("read into what refuses", "read modes that refuse", "remove text"):
                with pytest.raises((TypeError, RuntimeError)):
                    MISUSES[misuse]()

    work(300)
    gc.collect()
    before = resident_bytes(os.getpid())
    work(3000)
    gc.collect()

    assert resident_bytes(os.getpid()) - before < 1_000_000
