from math import inf
from types import SimpleNamespace

import pytest

from kvmesh.app.serve.placed_turns import WHOLE_HELD_S, bound_turn
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.programs.governor import Governor
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.http.server.request import Request
from tests.unit.core.programs.program_cases import SmallFleet, make_governor, make_turn


def bounded(
    *,
    streams: bool,
    silent_s: float = inf,
    governor: Governor | None = None,
    headers: dict[str, str],
) -> RouteRequest:
    """Return a request whose turn was bounded; a token takes 0.1 s to compute."""
    given = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
    sent = tuple((name.encode(), value.encode()) for name, value in given.items())
    asked = Request("POST", b"/v1/chat/completions", sent)
    timeout_s = float(given["x-kvmesh-timeout-s"]) if "x-kvmesh-timeout-s" in given else None
    turns = SimpleNamespace(governor=governor)
    scheduler = SimpleNamespace(speeds=SimpleNamespace(fleet_ms_per_token=100.0))
    context = SimpleNamespace(routing=SimpleNamespace(turns=turns), scheduler=scheduler)
    exchange = SimpleNamespace(request=asked, silent_s=silent_s)
    request = RouteRequest(
        *("r1", BlockHashes.of([], 16), 10),
        streams=streams,
        timeout_s=timeout_s,
        turn=make_turn("a", 10),
    )
    return bound_turn(context, request, exchange)  # type: ignore[arg-type]  # what it reads of them


@pytest.mark.parametrize(
    ("streams", "silent_s", "headers", "held_s"),
    [
        (True, inf, {}, inf),
        (True, inf, {"stainless_read_timeout": "5", "stainless_timeout": "9"}, inf),
        (True, inf, {"kvmesh_timeout_s": "40"}, 20.0),
        (True, 30.0, {}, 30.0),
        (True, 30.0, {"stainless_read_timeout": "5"}, 2.5),
        (True, 30.0, {"stainless_read_timeout": "600"}, 30.0),
        (True, 0.0, {"stainless_read_timeout": "600"}, 0.0),
        (False, inf, {}, WHOLE_HELD_S),
        (False, inf, {"stainless_read_timeout": "600"}, 300.0),
        (False, inf, {"stainless_read_timeout": "600", "stainless_timeout": "5"}, 2.5),
        (False, inf, {"kvmesh_timeout_s": "3", "stainless_timeout": "5"}, 1.5),
        (False, inf, {"stainless_timeout": "1.2"}, 0.2),
        (False, inf, {"stainless_timeout": "0.5"}, 0.0),
        (False, inf, {"stainless_timeout": "1e25"}, WHOLE_HELD_S),
        (False, inf, {"stainless_timeout": "NaN", "stainless_read_timeout": "-3"}, WHOLE_HELD_S),
        (False, inf, {"stainless_timeout": "0"}, WHOLE_HELD_S),
    ],
)
def test_a_turn_is_held_as_long_as_its_client_goes_on_waiting(
    streams: bool, silent_s: float, headers: dict[str, str], held_s: float
) -> None:
    governor = make_governor(SmallFleet(w1=1000))
    turn = bounded(streams=streams, silent_s=silent_s, governor=governor, headers=headers).turn

    assert turn is not None
    assert turn.patience_s == pytest.approx(held_s)


def test_where_there_is_no_governor_no_turn_is_held_so_none_is_bounded() -> None:
    turn = bounded(streams=False, headers={"kvmesh_timeout_s": "3"}).turn

    assert turn is not None
    assert turn.patience_s == inf
