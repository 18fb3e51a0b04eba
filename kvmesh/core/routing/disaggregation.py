"""Prefill on one worker, decode on another: who may do what, and what is sent to each.

Roles are labels and taints, so that every rule of choice holds for them, too: a worker for prefill
takes nothing but prefills, one for decode whole requests as well where its engine can.
vLLM: the prefill worker computes one token and answers with `kv_transfer_params`, which go into the
decode worker's request as they are. SGLang: both get the same request at once, with the prefill
worker's bootstrap address and a room number to meet in; the decode worker answers.
Source: vllm/distributed/kv_transfer (0.32), sglang/srt/disaggregation (0.5.23).
"""

from typing import Final, Literal

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import CodecError

Role = Literal["both", "prefill", "decode"]

PREFILL: Final = "kvmesh/prefill"
DECODE: Final = "kvmesh/decode"

Marks = tuple[tuple[str, ...], tuple[str, ...]]
"""Labels and taints."""

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

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SplitOptions(msgspec.Struct, frozen=True):
    """When to split, how often to try and how long to wait: `timeout_s` for a prefill's answer."""

    threshold_tokens: int
    max_retries: int
    timeout_s: float


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"")


_answers = msgspec.json.Decoder(_Answer)


def role_marks(role: Role, *, bootstrap: bool) -> Marks:
    """Return the labels and taints of a worker of that role.

    With `bootstrap` (SGLang) a decode worker cannot do without a prefill worker: it is tainted.
    """
    if role == "prefill":
        return (PREFILL,), (PREFILL,)
    if role == "decode":
        return (DECODE,), (DECODE,) if bootstrap else ()
    return (), ()


def prefill_request(request: RouteRequest, excluded: frozenset[WorkerId]) -> RouteRequest:
    """Return what to schedule for the prefill of `request`."""
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id}/prefill",
        labels=request.labels | {PREFILL},
        tolerations=request.tolerations | {PREFILL},
        excluded=excluded,
        pinned_worker=None,
        mode=None,
        expected_output_tokens=1,
        streams=False,
    )


def decode_request(request: RouteRequest) -> RouteRequest:
    """Return what to schedule for the decode of `request`: nothing is left to prefill."""
    return msgspec.structs.replace(
        request,
        labels=request.labels | {DECODE},
        tolerations=request.tolerations | {DECODE},
        prefilled=True,
    )


def prefill_body(body: bytes) -> bytes:
    """Return a client's request as one for vLLM's prefill worker. Raises `CodecError`."""
    kept = {name: raw for name, raw in _decode(body).items() if name not in _DROPPED}
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
    return msgspec.json.encode({**_decode(body), "kv_transfer_params": params})


class Meeting(msgspec.Struct, frozen=True):
    """Where SGLang's two workers meet for one request. `room` is any number below 2^63.

    `dp_rank` is the prefill worker's, None if it has but one.
    """

    host: str
    port: int
    room: int
    dp_rank: int | None = None


def meeting_body(body: bytes, meeting: Meeting) -> bytes:
    """Return a client's request with the meeting in it, for both workers. Raises `CodecError`."""
    fields: dict[str, object] = {
        **_decode(body),
        "bootstrap_host": meeting.host,
        "bootstrap_port": meeting.port,
        "bootstrap_room": meeting.room,
    }
    if meeting.dp_rank is not None:
        fields["disagg_prefill_dp_rank"] = meeting.dp_rank
    return msgspec.json.encode(fields)


def _decode(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"request body of {len(body)} bytes: {error}") from error
