"""The compiled cache of texts refuses what are none, and finds several at once."""

from typing import Any

import pytest

from kvmesh import _native
from kvmesh._native import TextCache

native: Any = _native


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: native.TextCache(9).find(("a",)),
        lambda: native.TextCache(9).find([1]),
    ],
)
def test_misuse_is_an_error(misuse: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        misuse()


def test_texts_are_found_together() -> None:
    cache = TextCache(1 << 12)
    cache.put("a", b"1")

    assert cache.find(["a", "b", "a"]) == [b"1", None, b"1"]
    assert cache.find([]) == []
    assert cache.figures()[:2] == (2, 1)
