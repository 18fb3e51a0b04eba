import pytest

from kvmesh.app.router.policy_admin import read_wish
from kvmesh.core.insight.policy_change import Bounds, PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.errors import RequestError


def test_a_change_is_read_with_all_it_may_name() -> None:
    body = (
        b'{"formula": "lmetric", "weights": {"a": 2}, "at_once": true, "min_requests": 50,'
        b' "bounds": {"ttft_ratio": 1.5}, "window_s": 2, "max_s": 60}'
    )

    assert read_wish(body) == PolicyChange(
        PolicySpec("lmetric", {"a": 2.0}), True, 50, Bounds(ttft_ratio=1.5), 2.0, 60.0
    )


def test_a_return_is_asked_for_alone() -> None:
    assert read_wish(b'{"return": true}') is None
    with pytest.raises(RequestError, match="takes no other field"):
        read_wish(b'{"return": true, "formula": "lmetric"}')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "send a JSON object of formula, weights, at_once, bounds, min_requests, window_s,"),
        (b"[]", "bounds are ttft_ratio, tpot_ratio, error_margin"),
        (b'{"formula": "lmetric", "shares": [1]}', "unknown field `shares`"),
        (b'{"formula": "lmetric", "bounds": {"p99": 1}}', "unknown field `p99`"),
        (b'{"formula": "lmetric", "weights": {"a": "x"}}', "Expected `float`"),
        (b'{"formula": 5}', "Expected `str`"),
        (b"{}", "formula is missing; GET /admin/policy lists those there are"),
        (b'{"return": false}', "formula is missing"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_can(body: bytes, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_wish(body)

    assert caught.value.status == 400
    assert str(caught.value).startswith("/admin/policy: ")
    assert said in str(caught.value)
