"""How SGLang's prefill and decode workers share a request: they meet in a room.

Both get the same request at once, with the prefill worker's bootstrap address and a room number.
Source: sglang/srt/disaggregation (0.5.23).
"""

from typing import Final

import msgspec

from kvmesh.core.engines.handshake import Meeting, Rendezvous, body_fields


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


RENDEZVOUS: Final = Rendezvous(meeting_body)
