"""Calls that get no memory."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def starved(number: int, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `call` does when the allocation of that number fails; None for MemoryError."""
    testcapi = importlib.import_module("_testcapi")
    tracer = sys.gettrace()
    sys.settrace(None)  # who measures coverage allocates, too
    testcapi.set_nomemory(number, number + 1)
    try:
        return call(*arguments)
    except MemoryError:
        return None
    finally:
        testcapi.remove_mem_hooks()
        sys.settrace(tracer)
