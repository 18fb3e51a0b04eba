"""How vLLM's prefill and decode workers share a request: by `kv_transfer_params`.

The prefill worker computes one token and answers with `kv_transfer_params`, which go into the
decode worker's request as they are.
Source: vllm/distributed/kv_transfer (0.32).
"""

from typing import Final

import msgspec

from kvmesh.core.engines.handshake import Transfer, body_fields

_ASK_PREFILL: Final = msgspec.Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_ONE_TOKEN: Final = {
    "max_tokens": msgspec.Raw(b"1"),
    "stream": msgspec.Raw(b"false"),
    "kv_transfer_params": _ASK_PREFILL,
}
_DROPPED: Final = frozenset({"stream_options", "max_completion_tokens", "min_tokens"})


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"")


_answers = msgspec.json.Decoder(_Answer)


def prefill_body(body: bytes) -> bytes:
    """Return a client's request as one for the prefill worker. Raises `CodecError`."""
    kept = {name: raw for name, raw in body_fields(body).items() if name not in _DROPPED}
    return msgspec.json.encode({**kept, **_ONE_TOKEN})


def transfer_params(answer: bytes) -> msgspec.Raw | None:
    """Return what a prefill worker's answer says of the transfer; None when it says nothing."""
    try:
        params = _answers.decode(answer).kv_transfer_params
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return msgspec.Raw(bytes(params)) if bytes(params) not in {b"", b"null"} else None


def decode_body(body: bytes, params: msgspec.Raw) -> bytes:
    """Return a client's request with the transfer's parameters in it. Raises `CodecError`."""
    return msgspec.json.encode({**body_fields(body), "kv_transfer_params": params})


TRANSFER: Final = Transfer(prefill_body, transfer_params, decode_body)
