"""The faults of the pretend vLLM: what its flags or `/kvmesh/faults` ask for happens here."""

import asyncio
import os
import random
from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.errors import ConfigError, RequestError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.wire.headers import Headers
from kvmesh_lab.mocker.bad_reply import BadReply, EndingReply, answer_at_once
from kvmesh_lab.mocker.engine import EngineRunner
from kvmesh_lab.mocker.model.faults import Fault, FaultOptions, FaultPlan
from kvmesh_lab.mocker.reply import CutReply, Reply, SlowReply

PATH: Final = "/kvmesh/faults"
GARBAGE: Final = b"\x16\x03\x01\x00\x7fthis is no HTTP\x00\xff\xfe\r\n\r\n"
HALF_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-le"
UNHEALTHY: Final = 503
KILLED: Final = 137
"""What a shell says of a process that was killed by signal 9."""
_WRITTEN_S: Final = 0.002


class FaultView(msgspec.Struct, frozen=True):
    """What `/kvmesh/faults` answers: the faults in force, whether they apply now, and how many
    generation requests came since they were set and what these met, by kind.
    """

    fail: tuple[str, ...]
    flap: str
    fail_health: bool
    fail_seed: int
    slowdown: float
    first_pause_s: float
    stall: bool
    hang_health: bool
    bad_now: bool
    requests: int
    met: dict[str, int]


class FaultDesk:
    """Gives each generation request the fault that was drawn for it, and each of the `engines` its
    pace. Needs a running loop.

    Raises `ConfigError`.
    """

    def __init__(self, options: FaultOptions, engines: Iterable[EngineRunner]) -> None:
        self._engines = tuple(engines)
        self._plan = _plan(options)
        self._rng = random.Random(options.fail_seed)  # noqa: S311  a simulation, not a secret
        self._take(options)

    def answers(self, exchange: Exchange) -> bool:
        """Return whether a request is answered at all."""
        asked = exchange.request
        return not (self._options.hang_health and asked.method == "GET" and asked.path != PATH)

    def admit(self, exchange: Exchange) -> Reply | None:
        """Return where to answer the request; None when its fault was all there is to it."""
        fault = self._plan.draw(asyncio.get_running_loop().time())
        if fault is None:
            return exchange
        match fault.kind:
            case "slow" | "cut" | "die-after" | "hang-after":
                return _spoiling(exchange, fault)
            case "status" | "dead":
                exchange.respond(fault.status, fault.error_body(), headers=_retry_after(fault))
            case "reset":
                exchange.reset()
            case "garbage":
                exchange.break_off(GARBAGE)
            case "half-head":
                exchange.break_off(HALF_HEAD)
            case "bad-answer" if fault.answer is not None:
                done = answer_at_once(exchange, fault.answer, self._rng.randbytes)
                return None if done else BadReply(exchange, fault.answer)
            case _:
                pass  # a hang
        return None

    def health(self, exchange: Exchange) -> None:
        """Answer a health probe."""
        failing = self._plan.fails_health(asyncio.get_running_loop().time())
        exchange.respond(UNHEALTHY if failing else 200, b"")

    def show(self, exchange: Exchange) -> None:
        """Answer the faults in force and what was met of them."""
        options, counts = self._options, self._plan.counts()
        view = FaultView(
            fail=options.fail,
            flap=options.flap,
            fail_health=options.fail_health,
            fail_seed=options.fail_seed,
            slowdown=options.slowdown,
            first_pause_s=options.first_pause_s,
            stall=options.stall,
            hang_health=options.hang_health,
            bad_now=self._plan.is_bad(asyncio.get_running_loop().time()),
            requests=counts.requests,
            met=counts.met,
        )
        exchange.respond(200, msgspec.json.encode(view))

    def change(self, exchange: Exchange) -> None:
        """Take other faults in place of all before; counts, draws and phases begin anew.

        Raises `RequestError`.
        """
        try:
            options = msgspec.json.decode(exchange.request.body, type=FaultOptions)
            self._plan = _plan(options)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"{PATH}: {error}", param="body") from error
        except ConfigError as error:
            raise RequestError(f"{PATH}: {error}") from error
        self._take(options)
        self.show(exchange)

    def _take(self, options: FaultOptions) -> None:
        self._options = options
        for engine in self._engines:
            engine.set_pace(options.slowdown, options.first_pause_s, stalled=options.stall)


def _spoiling(exchange: Exchange, fault: Fault) -> Reply:
    """Return what passes on a good answer late, or not to its end."""
    if fault.kind == "slow":
        return SlowReply(exchange, fault.factor)
    if fault.kind == "cut":
        return CutReply(exchange)
    end_all = _die_soon if fault.kind == "die-after" else _do_nothing
    return EndingReply(exchange, fault.tokens, end_all)


def _die_soon() -> None:
    """End this process at once, nothing closed nor told, when the last bytes have left it."""
    asyncio.get_running_loop().call_later(_WRITTEN_S, os._exit, KILLED)


def _do_nothing() -> None:
    """Let the client wait."""


def _plan(options: FaultOptions) -> FaultPlan:
    rng = random.Random(options.fail_seed)  # noqa: S311  a simulation, not a secret
    return FaultPlan(options, rng, asyncio.get_running_loop().time())


def _retry_after(fault: Fault) -> Headers:
    if fault.retry_after_s is None:
        return ()
    return ((b"retry-after", b"%d" % fault.retry_after_s),)
