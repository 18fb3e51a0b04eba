import json

import pytest

from kvmesh.core.engines.fetch import Source
from kvmesh.core.engines.vllm.fetch import FETCHES, fetching_body
from kvmesh.errors import CodecError

SOURCE = Source("10.0.0.2", 5711, "r1-1")


@pytest.mark.parametrize("before", [{}, {"kv_transfer_params": None}])
def test_the_source_is_named_as_the_p2p_tier_reads_it(before: dict[str, object]) -> None:
    body = {"model": "m", "prompt": "p", "temperature": 0.25, **before}

    sent = json.loads(fetching_body(json.dumps(body).encode(), SOURCE))

    assert sent == {
        "model": "m",
        "prompt": "p",
        "temperature": 0.25,
        "kv_transfer_params": {
            "remote_kv_source": {
                "kv_request_id": "r1-1",
                "remote_host": "10.0.0.2",
                "remote_port": 5711,
            }
        },
    }


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"kv_transfer_params":{"x":1}}', b"\xff"])
def test_a_body_that_is_none_or_names_its_own_is_refused(body: bytes) -> None:
    with pytest.raises(CodecError, match="request body"):
        fetching_body(body, SOURCE)


def test_lmcache_finds_prefixes_itself() -> None:
    assert FETCHES["lmcache"].body is None
    assert FETCHES["offloading"].body is fetching_body
