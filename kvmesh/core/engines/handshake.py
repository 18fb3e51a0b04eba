"""How a prefill and a decode worker of one engine come to share one request's KV cache.

There are two ways, and an engine has one of them. `Transfer`: the prefill worker is asked first,
and what it answers of the transfer goes into the decode worker's request. `Rendezvous`: both get
the same request at once, with a place to meet in; the decode worker answers.
"""

from collections.abc import Callable

import msgspec

from kvmesh.errors import CodecError


class Transfer(msgspec.Struct, frozen=True):
    """Prefill first. All take the client's body as it was sent and may raise `CodecError`.

    `prefill_body` makes the prefill worker's request, `params` reads its answer (None: it transfers
    nothing) and `decode_body` puts that into the decode worker's request.
    """

    prefill_body: Callable[[bytes], bytes]
    params: Callable[[bytes], msgspec.Raw | None]
    decode_body: Callable[[bytes, msgspec.Raw], bytes]


class Meeting(msgspec.Struct, frozen=True):
    """Where two workers meet for one request. `room` is any number below 2^63.

    `dp_rank` is the prefill worker's, None if it has but one.
    """

    host: str
    port: int
    room: int
    dp_rank: int | None = None


class Rendezvous(msgspec.Struct, frozen=True):
    """Both at once, at the prefill worker's `bootstrap_port`.

    `body` makes the request of both. Raises `CodecError`.
    """

    body: Callable[[bytes, Meeting], bytes]


Handshake = Transfer | Rendezvous

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def body_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Return a request body's fields, each as it was sent. Raises `CodecError`."""
    try:
        return _fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"request body of {len(body)} bytes: {error}") from error
