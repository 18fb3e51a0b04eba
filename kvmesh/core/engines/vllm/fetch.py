"""How vLLM takes a prefix from another vLLM's cache.

`offloading`: the `p2p` tier of its `OffloadingConnector` pulls blocks from the host memory of the
instance that `kv_transfer_params.remote_kv_source` names; what is not there is computed.
`lmcache`: LMCache's peers look for a prefix at each other, no request says where.
Source: vllm/v1/kv_offload/tiering/p2p (0.32, 0.33).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from kvmesh.core.engines.fetch import Fetch, Source
from kvmesh.core.engines.handshake import body_fields
from kvmesh.errors import CodecError

_PARAMS: Final = "kv_transfer_params"
_PORT: Final = 5710


def fetching_body(body: bytes, source: Source) -> bytes:
    """Return a client's request with where to pull its prefix from. Raises `CodecError`."""
    fields = body_fields(body)
    if bytes(fields.get(_PARAMS, b"null")) != b"null":
        raise CodecError(f"request body has {_PARAMS} of its own")
    named = {
        "remote_kv_source": {
            "kv_request_id": source.request_id,
            "remote_host": source.host,
            "remote_port": source.port,
        }
    }
    return msgspec.json.encode({**fields, _PARAMS: named})


FETCHES: Final[Mapping[str, Fetch]] = {
    "offloading": Fetch(fetching_body, _PORT),
    "lmcache": Fetch(),
}
