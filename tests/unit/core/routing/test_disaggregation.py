from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import (
    DECODE,
    PREFILL,
    decode_request,
    prefill_request,
    role_marks,
)

REQUEST = RouteRequest("r", BlockHashes.of([1], 16), 20, expected_output_tokens=9)


def test_roles_are_labels_and_taints() -> None:
    assert role_marks("both", whole=True) == ((), ())
    assert role_marks("prefill", whole=True) == ((PREFILL,), (PREFILL,))
    assert role_marks("decode", whole=True) == ((DECODE,), ())
    assert role_marks("decode", whole=False) == ((DECODE,), (DECODE,))


def test_a_prefill_is_a_request_of_its_own_for_prefill_workers() -> None:
    wanted = prefill_request(REQUEST, frozenset([WorkerId("w")]))

    assert wanted.request_id != REQUEST.request_id
    assert wanted.labels == wanted.tolerations == {PREFILL}
    assert wanted.excluded == {WorkerId("w")}
    assert (wanted.expected_output_tokens, wanted.streams) == (1, False)


def test_a_decode_has_nothing_left_to_prefill() -> None:
    wanted = decode_request(REQUEST)

    assert (wanted.request_id, wanted.prefilled) == ("r", True)
    assert wanted.labels == wanted.tolerations == {DECODE}
