"""How an exchange ends early, or badly: what its client is sent.

How an answer can end so (`core.members.answer_check`), and what the client sees: before its first
byte: another upstream is tried, at last 502 or 504; for a redirect 502 at once; in an event stream:
one error event, the upstream's own where it sent any, then the connection is closed without the
last chunk, so that neither a client that reads events nor one that reads HTTP takes the answer for
whole; a request whose body has ended two upstreams within a minute is refused (422), whoever sends
it; in any other answer: the connection is closed without the last chunk, or short of its length. An
error of ours is told in the same ways, as 500.
"""

from math import ceil
from typing import Final

from kvmesh._native import EventStream
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.scope import End
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem, error_event

MAX_ERROR_BYTES: Final = 64 * 1024
"""Of an upstream's error that is passed on as an event."""

POISON: Final = Problem(
    422,
    "this very request ended two workers within the last minute: do not send it",
    "poison",
    final=True,
)
_NO_WORKER: Final = Problem(503, "no worker can take this request", "no_worker", retry_after_s=1)
_FAILED: Final = Problem(502, "upstream failed")


def finish(exchange: Exchange, data: bytes) -> None:
    """Pass on what is left of an answer that is whole."""
    exchange.scope.kind = "finished"
    if data:
        exchange.write(data)
    exchange.end()


def finish_failed(exchange: Exchange, text: bytes) -> None:
    """Pass an upstream's error on in the stream that was begun for its answer."""
    exchange.scope.kind = "finished"
    told = text if 0 < len(text) <= MAX_ERROR_BYTES else _FAILED.body()
    exchange.write(error_event(b" ".join(told.split()), exchange.request.path))
    _break_off(exchange)


def answer(exchange: Exchange, problem: Problem, kind: End) -> None:
    """Answer with an error of ours; of the answer nothing but comments has passed."""
    exchange.scope.kind = kind
    if exchange.started:
        exchange.write(_event(exchange, problem))
        _break_off(exchange)
    else:
        exchange.fail(problem)


def break_answer(exchange: Exchange, stream: EventStream | None, problem: Problem) -> None:
    """Break an answer off that has begun, a stream behind one error event."""
    if stream is None:
        exchange.abort()
        return
    if not stream.errors:  # else the client has one
        event = _event(exchange, problem)
        exchange.write(b"\n\n" + event if stream.torn else event)
    _break_off(exchange)


def _event(exchange: Exchange, problem: Problem) -> bytes:
    return problem.event(exchange.request_id.decode("latin-1"), exchange.request.path)


def _break_off(exchange: Exchange) -> None:
    """End an event stream behind an error event; in HTTP/1.0 a reset might overtake it."""
    if exchange.request.http_1_0:
        exchange.end()
    else:
        exchange.abort()


def gave_up(failure: UpstreamFailure | None, attempts: int, worker: str) -> Problem:
    """Return what a client is told after so many attempts, the last at `worker`."""
    if failure is None:
        return _NO_WORKER
    status = failure.status or (504 if failure.kind in {"timeout", "hung"} else 502)
    text = f"no worker answered in {attempts} attempts; the last: {failure.describe(worker)}"
    wait_s = ceil(failure.retry_after_s)
    return Problem(status, text, f"upstream_{failure.kind}", retry_after_s=wait_s)


def redirected(status: int, worker: str, added: Headers) -> Problem:
    """Return what is answered in place of a redirect: where it leads is inside, and the engine's to
    say.
    """
    text = (
        f"{worker or 'upstream'} answered {status}, a redirect, which is neither followed nor "
        "passed on: send to the path that it serves, perhaps without a slash at its end"
    )
    return Problem(502, text, "upstream_redirect", final=True, also=tuple(added))
