"""How SGLang's prefill and decode workers share a request: they meet in a room.

Both get the same request at once, with the prefill worker's bootstrap address and a room number. Of
a list of prompts, or several answers, each takes the next room.
Source: sglang/srt/disaggregation, srt/managers/io_struct.py `_normalize_bootstrap_params` (0.5.23).
"""

from typing import Final

import msgspec

from kvmesh.core.engines.handshake import Connector, Meeting, body_fields


def meeting_body(body: bytes, meeting: Meeting) -> bytes:
    """Return a client's request with the meeting in it, for both workers. Raises `CodecError`."""
    fields: dict[str, object] = {
        **body_fields(body),
        "bootstrap_host": meeting.host,
        "bootstrap_port": meeting.port,
        "bootstrap_room": meeting.room,
    }
    if meeting.dp_rank is not None:
        fields["disagg_prefill_dp_rank"] = meeting.dp_rank
    return msgspec.json.encode(fields)


def _decode(body: bytes, meeting: Meeting, _: msgspec.Raw) -> bytes:
    return meeting_body(body, meeting)


BOOTSTRAP: Final = Connector(
    name="bootstrap",
    title="SGLang disaggregation (Mooncake or NIXL behind a bootstrap server)",
    prefill=meeting_body,
    decode=_decode,
    beside=True,
    needs=("prefill-port",),
    many=True,
    whole=False,
)
