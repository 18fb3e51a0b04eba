"""What is asked of an engine of no known kind: whether it has slots that keep a prompt each.

llama.cpp's server has (`--parallel`, and `--ctx-size` divided among them): `total_slots` of /props,
and `n_ctx` of each. Source: tools/server/server-context.cpp.
"""

from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE, Tokens
from kvmesh.core.engines.facts import EngineFacts, Interview

PROPS: Final = "/props"


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: Tokens = 0


class _Props(msgspec.Struct):
    total_slots: Tokens
    default_generation_settings: _Settings = _Settings()


def recognise(_host: str = "") -> Interview[EngineFacts | None]:
    """Ask for its slots; None where it tells of none."""
    body = yield PROPS
    try:
        props = msgspec.json.decode(body or b"", type=_Props)
    except UNREADABLE:
        return None
    return EngineFacts(
        prompt_slots=props.total_slots, slot_tokens=props.default_generation_settings.n_ctx
    )
