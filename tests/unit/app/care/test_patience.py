import asyncio
import contextlib
from collections.abc import AsyncIterator

from kvmesh.app.care.patience import MOST_HELD, Patience
from kvmesh.transport.http.server.scope import Scope
from tests.conftest import Eventually


class Fleet:
    """Somebody, or nobody, who takes requests at a time that tests set."""

    def __init__(self, wait_s: float = 5.0) -> None:
        self.someone = False
        self.now = 100.0
        self.patience = Patience(wait_s, lambda: self.someone, lambda: self.now)
        self.went_on: list[str] = []
        self.crashes: list[str] = []

    def scope(self, name: str = "") -> Scope:
        return Scope(name.encode(), lambda error, _: self.crashes.append(str(error)))

    def hold(self, name: str) -> bool:
        return self.patience.hold(self.scope(name), lambda: self.went_on.append(name))


@contextlib.asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    task = asyncio.create_task(fleet.patience.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_requests_go_on_in_their_order_when_somebody_is_there(
    eventually: Eventually,
) -> None:
    fleet = Fleet()
    async with running(fleet):
        assert fleet.hold("a")
        assert fleet.hold("b")
        assert (fleet.patience.waiting, fleet.patience.held, fleet.went_on) == (2, 2, [])

        fleet.someone = True

        await eventually(lambda: fleet.went_on == ["a", "b"])
        fleet.someone = False
        assert fleet.hold("c")
        fleet.someone = True
        await eventually(lambda: fleet.went_on == ["a", "b", "c"])
    assert fleet.patience.waiting == 0


async def test_nobody_waits_for_ever(eventually: Eventually) -> None:
    fleet = Fleet(wait_s=5.0)
    async with running(fleet):
        fleet.hold("early")
        fleet.now += 2.0
        fleet.hold("late")

        fleet.now += 3.0

        await eventually(lambda: fleet.went_on == ["early"])
        assert fleet.patience.waiting == 1


async def test_a_request_that_ended_meanwhile_does_not_go_on(eventually: Eventually) -> None:
    fleet = Fleet()
    other = fleet.scope("second")

    def first() -> None:
        fleet.went_on.append("first")
        other.end()

    async with running(fleet):
        assert fleet.patience.hold(fleet.scope("first"), first)
        assert fleet.patience.hold(other, lambda: fleet.went_on.append("second"))
        fleet.hold("third")
        fleet.someone = True

        await eventually(lambda: "third" in fleet.went_on)

    assert fleet.went_on == ["first", "third"]


async def test_a_request_that_fails_as_it_goes_on_keeps_nobody_waiting(
    eventually: Eventually,
) -> None:
    fleet = Fleet()

    def fail() -> None:
        raise RuntimeError("planted")

    async with running(fleet):
        assert fleet.patience.hold(fleet.scope("first"), fail)
        fleet.hold("second")
        fleet.someone = True
        await eventually(lambda: fleet.went_on == ["second"])
        fleet.someone = False
        assert fleet.hold("third")

    assert fleet.crashes == ["planted"]


def test_a_request_is_held_once_and_only_while_nobody_is_there() -> None:
    fleet = Fleet()
    scope = fleet.scope()

    assert fleet.patience.hold(scope, fleet.went_on.clear)
    assert not fleet.patience.hold(scope, fleet.went_on.clear)
    scope.end()
    assert fleet.patience.waiting == 0

    fleet.someone = True
    assert not fleet.hold("a")


def test_without_patience_and_beyond_a_bound_nothing_is_held() -> None:
    assert not Fleet(wait_s=0.0).hold("a")
    fleet = Fleet()

    assert all(fleet.hold(f"{number}") for number in range(MOST_HELD))

    assert not fleet.hold("one more")
    assert fleet.patience.waiting == fleet.patience.held == MOST_HELD
