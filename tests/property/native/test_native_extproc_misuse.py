"""Nothing that Python code may hand to the compiled reader harms the process."""

import contextlib
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.measure import resident_bytes
from kvmesh import _native
from kvmesh.errors import CodecError
from kvmesh.transport.grpc.extproc_messages import KINDS, Modes
from tests.fuzz.extproc_targets import seeds

core: Any = _native
TYPES = (*KINDS, Modes, CodecError)
HEAD, ANSWERED, *_ = seeds("extproc")


class Refusing:
    """A type that cannot be made."""

    def __init__(self, *_: object) -> None:
        raise RuntimeError("no")


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
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_error(misuse: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError, OverflowError)):
        MISUSES[misuse]()


def test_reading_leaks_nothing() -> None:
    def work(times: int) -> None:
        for _ in range(times):
            for data in (HEAD, ANSWERED, HEAD[:-3], b"\xff"):
                with contextlib.suppress(CodecError):
                    core.read_extproc(TYPES, data)
            for misuse in ("read into what refuses", "read modes that refuse"):
                with pytest.raises((TypeError, RuntimeError)):
                    MISUSES[misuse]()

    work(300)
    gc.collect()
    before = resident_bytes(os.getpid())
    work(3000)
    gc.collect()

    assert resident_bytes(os.getpid()) - before < 1_000_000
