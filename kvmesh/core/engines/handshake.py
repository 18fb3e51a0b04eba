"""How a prefill and a decode worker of one engine come to share one request's KV cache.

A `Connector` is one row of the table of ways there are: what both workers must be told, what the
prefill worker answers, and which of the two begins. Each kind of engine lists its own.
"""

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from kvmesh.errors import CodecError

Need = Literal["prefill-port", "decode-port"]


_ONE_TOKEN: Final = {"max_tokens": msgspec.Raw(b"1"), "stream": msgspec.Raw(b"false")}
_DROPPED: Final = frozenset({"stream_options", "max_completion_tokens", "min_tokens"})


class Meeting(msgspec.Struct, frozen=True):
    """One request's two workers, as each is told of the other.

    `host` and `port` are where the prefill worker's side channel listens, `dp_rank` is its rank,
    None if it has but one; `engine_id` is what it calls itself, "" unless it was asked.
    `decode_host` and `decode_port` are the decode worker's. `room` is any number below 2^63, never
    used twice.
    """

    host: str
    port: int
    room: int
    dp_rank: int | None = None
    engine_id: str = ""
    decode_host: str = ""
    decode_port: int = 0


Body = Callable[[bytes, Meeting], bytes]


NO_PARAMS: Final = msgspec.Raw(b"null")
"""What a prefill worker answers of a transfer that its connector needs to know nothing of."""


class Connector(msgspec.Struct, frozen=True, kw_only=True):
    """One way of sharing a request. `name` is what settings call it, `title` what engines do.

    `prefill` makes the prefill worker's body of the client's, `decode` the decode worker's, which
    also takes what the prefill worker answered. Both may raise `CodecError`. `answers` reads that
    answer: None is one that transfers nothing. Without `answers` a 200 says all.
    `beside`: both workers get the request at once; else decode waits for the prefill's answer.
    `needs` are ports that each worker's configuration must name: "prefill-port" the prefill
    worker's, "decode-port" the decode worker's, too, which then is chosen first. `returns` are
    fields without which an answer transfers nothing, `asks` is a path at the prefill worker's port
    that `engine_ids` reads, "" for none. `request_id` is what both workers must know the request
    by. `many`: also takes lists of prompts and several answers. `whole`: a decode worker can do
    without a prefill worker. `lease_s` is how long the prefill worker keeps blocks that no decode
    worker has asked for, 0 for as long as its cache does.
    """

    name: str
    title: str
    prefill: Body
    decode: Callable[[bytes, Meeting, msgspec.Raw], bytes]
    answers: Callable[[bytes], msgspec.Raw | None] | None = None
    beside: bool = False
    needs: tuple[Need, ...] = ()
    returns: tuple[str, ...] = ()
    asks: str = ""
    engine_ids: Callable[[bytes], dict[int, str]] | None = None
    request_id: Callable[[Meeting], bytes] | None = None
    many: bool = False
    whole: bool = True
    lease_s: float = 0.0


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def body_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Return a request body's fields, each as it was sent. Raises `CodecError`."""
    try:
        return _fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"request body of {len(body)} bytes: {error}") from error


def one_token(body: bytes) -> dict[str, msgspec.Raw]:
    """Return a request's fields for an answer of one token, no stream. Raises `CodecError`."""
    kept = {name: raw for name, raw in body_fields(body).items() if name not in _DROPPED}
    return {**kept, **_ONE_TOKEN}
