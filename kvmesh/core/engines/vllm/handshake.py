"""How vLLM's prefill and decode workers share a request, by `kv_transfer_params` of a connector.

The prefill worker computes one token. What it answers, or what the router made up for both, tells
the decode worker where the rest is.
Source: vllm/distributed/kv_transfer/kv_connector/v1: nixl, mooncake, lmcache_connector.py (0.32 and
0.33); p2p/p2p_nccl_connector.py (0.9.2 on, gone in 0.32).
"""

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import UNREADABLE, Text
from kvmesh.core.engines.handshake import Connector, Meeting, body_fields, one_token
from kvmesh.core.engines.load import MAX_RANKS

NIXL_LEASE_S: Final = 30.0
"""vLLM's `kv_lease_duration`: a decode worker renews it from when it has the request."""

MOONCAKE_LEASE_S: Final = 480.0
"""vLLM's `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`."""

_NULL: Final = msgspec.Raw(b"null")
_STOPS: Final = frozenset({"stop", "stop_token_ids"})
_ASK: Final = msgspec.Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_NEEDED: Final = ("remote_engine_id", "remote_host", "remote_port")
_NEEDED_TO_PUSH: Final = (*_NEEDED, "tp_size")


class _Answer(msgspec.Struct):
    kv_transfer_params: dict[str, msgspec.Raw] | None = None


class _RawAnswer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"")


class _Entry(msgspec.Struct):
    engine_id: Text


_answers = msgspec.json.Decoder(_Answer)
_raw_answers = msgspec.json.Decoder(_RawAnswer)
_Rank = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]
_entries = msgspec.json.Decoder(Annotated[dict[_Rank, _Entry], Meta(max_length=MAX_RANKS)])


def ask_transfer(body: bytes, _: Meeting) -> bytes:
    """Return a client's request as one for a NIXL prefill worker. Raises `CodecError`."""
    return msgspec.json.encode({**one_token(body), "kv_transfer_params": _ASK})


def transfer_params(answer: bytes, needed: tuple[str, ...] = _NEEDED) -> msgspec.Raw | None:
    """Return what a NIXL prefill worker's answer says of the transfer, as it came.

    None when it says nothing, or less than a decode worker needs: that would fail, or compute the
    prompt itself while the blocks stay taken.
    """
    try:
        known = _answers.decode(answer).kv_transfer_params
        if known is None or any(bytes(known.get(one, _NULL)) == b"null" for one in needed):
            return None
        return msgspec.Raw(bytes(_raw_answers.decode(answer).kv_transfer_params))
    except UNREADABLE:
        return None


def pass_on(body: bytes, _: Meeting, params: msgspec.Raw) -> bytes:
    """Return a client's request with the transfer's parameters in it. Raises `CodecError`."""
    return msgspec.json.encode({**body_fields(body), "kv_transfer_params": params})


def mooncake_prefill(body: bytes, meeting: Meeting) -> bytes:
    """Return the prefill worker's request: it keeps the blocks under the transfer's id.

    Only an answer that ended by its length is transferred: nothing else may end it.
    """
    fields: dict[str, object] = {
        name: raw for name, raw in one_token(body).items() if name not in _STOPS
    }
    fields["ignore_eos"] = True
    fields["kv_transfer_params"] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": _transfer_id(meeting),
    }
    return msgspec.json.encode(fields)


def mooncake_decode(body: bytes, meeting: Meeting, _: msgspec.Raw) -> bytes:
    """Return the decode worker's request: whose blocks they are, and where to ask for them."""
    params = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": _transfer_id(meeting),
        "remote_bootstrap_addr": f"http://{_authority(meeting.host, meeting.port)}",
        "remote_engine_id": meeting.engine_id,
    }
    return msgspec.json.encode({**body_fields(body), "kv_transfer_params": params})


def mooncake_engine_ids(page: bytes) -> dict[int, str]:
    """Return what a bootstrap server's engines call themselves, by rank; {} for any other page."""
    try:
        return {rank: entry.engine_id for rank, entry in _entries.decode(page).items()}
    except UNREADABLE:
        return {}


def p2p_request_id(meeting: Meeting) -> bytes:
    """Return the request id in which both workers find each other's address."""
    prefill = _authority(meeting.host, meeting.port)
    decode = _authority(meeting.decode_host, meeting.decode_port)
    return f"___prefill_addr_{prefill}___decode_addr_{decode}_{meeting.room:032x}".encode()


def _plain_prefill(body: bytes, _: Meeting) -> bytes:
    return msgspec.json.encode(one_token(body))


def _plain_decode(body: bytes, _: Meeting, __: msgspec.Raw) -> bytes:
    return body


def _transfer_id(meeting: Meeting) -> str:
    return f"kvmesh-{meeting.room:016x}"


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


NIXL: Final = Connector(
    name="nixl",
    title="NixlConnector, NixlPullConnector",
    prefill=ask_transfer,
    answers=transfer_params,
    returns=_NEEDED,
    decode=pass_on,
    lease_s=NIXL_LEASE_S,
)
"""The decode worker reads the blocks."""

NIXL_PUSH: Final = msgspec.structs.replace(
    NIXL,
    name="nixl-push",
    title="NixlPushConnector",
    answers=partial(transfer_params, needed=_NEEDED_TO_PUSH),
    returns=_NEEDED_TO_PUSH,
)
"""The decode worker registers with the prefill worker, which writes the blocks."""

MOONCAKE: Final = Connector(
    name="mooncake",
    title="MooncakeConnector",
    prefill=mooncake_prefill,
    decode=mooncake_decode,
    needs=("prefill-port",),
    asks="/query",
    engine_ids=mooncake_engine_ids,
    lease_s=MOONCAKE_LEASE_S,
)

P2P_NCCL: Final = Connector(
    name="p2p-nccl",
    title="P2pNcclConnector",
    prefill=_plain_prefill,
    decode=_plain_decode,
    needs=("prefill-port", "decode-port"),
    request_id=p2p_request_id,
    whole=False,
)
"""The prefill worker sends the blocks to the address in the request's id."""

SHARED: Final = Connector(
    name="shared",
    title="LMCacheConnectorV1, LMCacheMPConnector, MooncakeStoreConnector, FlexKVConnectorV1",
    prefill=_plain_prefill,
    decode=_plain_decode,
    many=True,
)
"""Both have one store: the decode worker finds there, by content, what the other has put in."""

CONNECTORS: Final = (NIXL, NIXL_PUSH, MOONCAKE, P2P_NCCL, SHARED)
