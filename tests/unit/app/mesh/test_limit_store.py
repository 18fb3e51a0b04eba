"""What replicas charge, over the plane in memory, which can go away."""

import contextlib

import pytest
import structlog

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh import limit_store
from kvmesh.app.mesh.limit_store import AGAIN_S, MOST_MESSAGES, TELL_EVERY_S, LimitStore
from kvmesh.core.admission import usage_limits
from kvmesh.core.admission.shares import MAX_ROWS
from kvmesh.core.admission.usage_limits import Limits, UsageLimits
from tests.conftest import Eventually
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer

SUBJECTS = Subjects("kvmesh", "chat")


@pytest.fixture(autouse=True)
def _no_bucket_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_limits, "MINUTE_S", 1e12)


class Shared:
    """A replica's limits with their store on a plane of its own."""

    def __init__(self, server: MemoryServer, name: str, epoch: int, accounts: int = 1) -> None:
        self.limits = UsageLimits(epoch)
        wanted = Limits(requests_per_minute=10)
        self.limits.replace({f"key:k{number}": wanted for number in range(accounts)}, 0.0)
        self.plane = MemoryPlane(server)
        self.store = LimitStore(self.limits, self.plane, SUBJECTS, name)

    async def start(self, stack: contextlib.AsyncExitStack) -> "Shared":
        await self.plane.connect()
        stack.push_async_callback(self.plane.close)
        stack.push_async_callback(self.store.stop)
        await self.store.start()
        return self

    def ask(self, key: str = "k0") -> None:
        self.limits.admit(self.limits.of(key, ""), 0, 0.0, 0.0)

    def left(self, key: str = "k0") -> bytes:
        lines = self.limits.headers(self.limits.of(key, ""), 0.0).splitlines()
        return lines[1].rpartition(b" ")[2]


async def test_replicas_charge_what_the_other_admitted(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0", 1).start(stack)
    two = await Shared(server, "r1", 2).start(stack)
    await eventually(lambda: not one.limits.has_news() and not two.limits.has_news())

    one.ask()
    two.ask()
    two.ask()

    await eventually(lambda: one.left() == two.left() == b"7")


async def test_what_was_charged_while_the_plane_was_away_is_told_then(
    stack: contextlib.AsyncExitStack, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit_store, "AGAIN_S", 0.05)
    server = MemoryServer()
    one = await Shared(server, "r0", 1).start(stack)
    two = await Shared(server, "r1", 2).start(stack)
    await eventually(lambda: not one.limits.has_news() and not two.limits.has_news())
    server.up = False
    server.wake()
    one.ask()
    await eventually(lambda: not one.store._woken.is_set())
    assert two.left() == b"10"

    server.up = True
    server.wake()

    await eventually(lambda: two.left() == b"9")


async def test_many_accounts_are_told_in_turns(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    many = MOST_MESSAGES * MAX_ROWS + 3
    server = MemoryServer()
    one = await Shared(server, "r0", 1, many).start(stack)
    two = await Shared(server, "r1", 2, many).start(stack)
    await eventually(lambda: not one.limits.has_news() and not two.limits.has_news())
    last = f"k{many - 1}"
    one.ask(last)

    await eventually(lambda: two.left(last) == b"9")


async def test_what_cannot_be_read_is_said_once(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0", 1).start(stack)
    with structlog.testing.capture_logs() as logs:
        for data in (b"no news", b"none"):
            one.plane.bus.publish("kvmesh.lim.chat.r1", data)
        one.plane.bus.publish("kvmesh.lim.chat.r0", b"its own is not read")
        one.ask()
        await eventually(lambda: any("refused" in line["event"] for line in logs))
        await eventually(lambda: not one.limits.has_news())

    assert [line["event"] for line in logs].count("a sibling's limits refused") == 1


def test_times_are_these() -> None:
    assert (TELL_EVERY_S, AGAIN_S, MOST_MESSAGES) == (0.01, 1.0, 16)
