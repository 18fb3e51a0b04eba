# What is used of sortedcontainers, which has no types of its own.
from collections.abc import Iterator
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

class SortedDict(dict[_Key, _Value]):
    def irange(self, minimum: _Key) -> Iterator[_Key]: ...
    def peekitem(self, index: int = -1) -> tuple[_Key, _Value]: ...
    def popitem(self, index: int = -1) -> tuple[_Key, _Value]: ...
