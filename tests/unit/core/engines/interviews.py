"""An engine that is asked without a network."""

from collections.abc import Mapping
from typing import TypeVar, cast

from kvmesh.core.engines.facts import Interview

T = TypeVar("T")


def conduct(interview: Interview[T], pages: Mapping[str, bytes]) -> tuple[T, list[str]]:
    """Return what was learned of an engine with those pages, and the paths that were asked."""
    asked: list[str] = []
    try:
        path = next(interview)
        while True:
            asked.append(path)
            path = interview.send(pages.get(path))
    except StopIteration as end:
        return cast("T", end.value), asked
