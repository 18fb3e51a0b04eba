"""What is known of a request on its way, read or placed as it was scanned."""

import pytest

from kvmesh._native import Placed, scan
from kvmesh.app.prompts.request_wishes import NO_WISHES, RequestWishes
from kvmesh.core.blocks.hashing import NO_HASHES, BlockHashes
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.dispatch.dispatched import as_read, at_once
from kvmesh.core.dispatch.placing import Placer, ScannedPrompt
from kvmesh.core.routing.decision import RouteRequest
from tests.unit.core.dispatch.test_placing import BODY, dispatch_to
from tests.unit.core.programs.program_cases import make_turn


def placed_by(dispatch: Dispatch, name: bytes = b"r", adapter: str = "") -> Placed:
    scanned = scan(BODY, True)
    assert scanned is not None
    prompt = ScannedPrompt(scanned, adapter=adapter)
    placed = Placer(dispatch).decide(prompt, name, NO_WISHES, 1.0)
    assert isinstance(placed, Placed)
    return placed


@pytest.mark.parametrize("chooses", [False, True])
def test_what_was_placed_makes_its_request_when_it_is_needed(*, chooses: bool) -> None:
    placed, turn = placed_by(dispatch_to("w")), make_turn("a", 100)
    one = at_once(placed, RequestWishes(tenant="acme", chooses=chooses), turn)

    assert (one.plain, one.turn, one.taking, one.made) == (not chooses, turn, True, None)
    assert one.known_hashes is placed.hashes
    one.drop_hashes()
    assert one.made is None
    assert (one.request.request_id, one.request.tenant, one.request.turn) == ("r", "acme", turn)
    assert one.known_hashes is one.request.hashes


@pytest.mark.parametrize("adapter", ["", "poet"])
def test_what_was_placed_keeps_its_adapter(adapter: str) -> None:
    placed = placed_by(dispatch_to("w"), adapter=adapter)

    assert at_once(placed, RequestWishes(), None).request.adapter == adapter


def test_what_was_read_is_not_plain_and_lets_its_hashes_go() -> None:
    request = RouteRequest("q", BlockHashes.of([1, 2], 16), 40)
    one = as_read(request, b"q")

    assert (one.plain, one.turn, one.known_hashes) == (False, None, request.hashes)
    one.drop_hashes()
    assert one.request.hashes is NO_HASHES
    one.request = request
    assert one.known_hashes is request.hashes
