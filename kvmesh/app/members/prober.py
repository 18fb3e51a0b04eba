"""Asks members over HTTP when the core wants to know whether they are there."""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from kvmesh.core.members.health import Answer
from kvmesh.errors import KvMeshError, SlowError
from kvmesh.tasks import attempt, wait_set
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.upstream.client import UpstreamPool

LOOK_S: Final = 0.25
ANSWER_S: Final = 1.5
"""An engine that computes for its life may take long; its answer then counts as slow."""

_SERVER_ERROR: Final = 500


_PATH: Final = re.compile(r"/[!-~]{0,200}")
_USUAL_PATH: Final = "/health"


class Probe(msgspec.Struct, frozen=True):
    """One member to ask: GET `url` + `path`. While `exact`, nothing but 200 is an answer."""

    member: str
    url: str
    path: str
    exact: bool = False

    @classmethod
    def of(cls, member: str, url: str, path: str, *, exact: bool = False) -> "Probe":
        """Return the probe of a member that named the path itself: one that is none is ignored."""
        return cls(member, url, path if _PATH.fullmatch(path) else _USUAL_PATH, exact)


class Prober:
    """Sends the probes that are `due` and reports each result; `wake` makes it check at once.

    Any answer but a server error is one, unless `exact`: an engine may not know the path. One probe
    a member is under way at a time.
    """

    def __init__(
        self,
        pool: UpstreamPool,
        due: Callable[[float], Sequence[Probe]],
        report: Callable[[str, Answer, float], None],
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._due = due
        self._report = report
        self._clock = clock
        self._woken = asyncio.Event()
        self._asking: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Look for due probes in this turn of the loop."""
        self._woken.set()

    async def run(self) -> None:
        """Ask, for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for probe in self._due(self._clock()):
                        if probe.member not in self._asking:
                            asking = attempt("ask members", partial(self._ask, probe))
                            task = group.create_task(asking)
                            self._asking[probe.member] = task
                    await wait_set(self._woken, LOOK_S)
                    self._woken.clear()
        finally:
            self._asking.clear()

    async def _ask(self, probe: Probe) -> None:
        answer: Answer = "down"
        try:
            status, _ = await fetch(self._pool, probe.url, probe.path, timeout_s=ANSWER_S)
            good = status == HTTP_OK if probe.exact else status < _SERVER_ERROR
            answer = "ok" if good else "unready"
        except SlowError:
            answer = "slow"
        except (KvMeshError, ValueError):
            answer = "down"
        finally:
            self._asking.pop(probe.member, None)
        self._report(probe.member, answer, self._clock())
