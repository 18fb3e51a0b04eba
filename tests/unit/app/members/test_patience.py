import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from kvmesh.app.members.patience import Patience
from kvmesh.transport.http.server.scope import Scope
from tests.conftest import Eventually


class Fleet:
    """Somebody, or nobody, who takes requests at a time that tests set."""

    def __init__(self, wait_s: float = 5.0) -> None:
        self.usable: tuple[str, ...] = ()
        self.now = 100.0
        self.patience = Patience(wait_s, lambda: self.usable, lambda: self.now)
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

        fleet.usable = ("w0",)

        await eventually(lambda: fleet.went_on == ["a", "b"])
        fleet.usable = ()
        assert fleet.hold("c")
        fleet.usable = ("w0",)
        await eventually(lambda: fleet.went_on == ["a", "b", "c"])
    assert fleet.patience.waiting == 0


async def test_nobody_waits_for_ever(eventually: Eventually) -> None:
    fleet = Fleet(wait_s=5.0)
    early, late = fleet.scope("early"), fleet.scope("late")
    ended: list[str] = []

    def try_again(name: str, scope: Scope) -> None:
        if not fleet.patience.hold(scope, lambda: try_again(name, scope)):
            ended.append(name)

    async with running(fleet):
        try_again("early", early)
        fleet.now += 2.0
        try_again("late", late)

        fleet.now += 3.0

        await eventually(lambda: ended == ["early"])
        assert (fleet.patience.waiting, fleet.patience.held) == (1, 2)


async def test_a_wait_that_is_shorter_than_a_try_ends_in_time(eventually: Eventually) -> None:
    fleet = Fleet(wait_s=0.5)
    async with running(fleet):
        assert fleet.hold("a")
        fleet.now += 0.5

        await eventually(lambda: fleet.went_on == ["a"])


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
        fleet.usable = ("w0",)

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
        fleet.usable = ("w0",)
        await eventually(lambda: fleet.went_on == ["second"])
        fleet.usable = ()
        assert fleet.hold("third")

    assert fleet.crashes == ["planted"]


async def test_a_client_that_waits_for_less_is_answered_in_time(eventually: Eventually) -> None:
    fleet = Fleet(wait_s=10.0)
    async with running(fleet):
        ended: list[str] = []

        def try_again(name: str, scope: Scope, client_s: float) -> None:
            proceed = partial(try_again, name, scope, client_s)
            if not fleet.patience.hold(scope, proceed, client_s):
                ended.append(name)

        for name, client_s in (("short", 4.0), ("long", 60.0), ("over", -1.0)):
            try_again(name, fleet.scope(name), client_s)
        assert ended == ["over"]

        fleet.now += 1.9
        await eventually(lambda: fleet.patience.waiting == 2)
        assert ended == ["over"]
        fleet.now += 0.2
        await eventually(lambda: ended == ["over", "short"])
