"""The source that a worker is told to fetch a prefix from, in the body of its request."""

from typing import Any

import msgspec
import pytest

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.serve.fetching import Fetching
from kvmesh.core.blocks.events import WorkerId
from kvmesh.transport.http.forward.plan import Target

SOURCE = WorkerId("w1")
BEAT = WorkerHeartbeat(SOURCE, "b", 1, 0, "http://10.0.0.1:8000", (), 16)
OFFLOADING = ("kvmesh/fetch/offloading/9000",)
TARGET = Target("http://10.0.0.2:8000")


def named(labels: tuple[str, ...], source: str | None = SOURCE, body: bytes = b"{}") -> Any:
    """Return a target that names `source`, and the headers about it."""
    beats = {SOURCE: msgspec.structs.replace(BEAT, labels=labels)}
    fetching = Fetching(beats, body)
    brought = None if source is None else Brought(WorkerId(source))
    decision: Any = Decided(brought)
    return fetching.name_source(TARGET, decision.brought, "q-1"), fetching.let_go()


class Brought(msgspec.Struct):
    source: WorkerId | None


class Decided(msgspec.Struct):
    brought: Brought | None


def test_the_source_of_a_decision_is_named_in_the_body_and_to_the_client() -> None:
    target, headers = named(OFFLOADING)

    assert target.origin == TARGET.origin
    assert b"10.0.0.1" in target.body
    assert headers == ((b"x-kvmesh-fetch-from", b"w1"),)


@pytest.mark.parametrize(
    ("labels", "source", "body"),
    [
        (OFFLOADING, None, b"{}"),
        (OFFLOADING, "gone", b"{}"),
        ((), "w1", b"{}"),
        (OFFLOADING, "w1", b"no json"),
    ],
)
def test_without_a_source_to_name_the_body_goes_as_it_is(
    labels: tuple[str, ...], source: str | None, body: bytes
) -> None:
    assert named(labels, source, body) == (TARGET, ())
