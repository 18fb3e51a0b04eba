"""Parts of a request that is read: where it may go, whose turn it is, and until when."""

from math import inf
from typing import Final, cast

import msgspec

from kvmesh.app.prompts.reading_threads import INLINE_BYTES, INLINE_ITEMS
from kvmesh.app.prompts.request_wishes import RequestWishes
from kvmesh.app.prompts.turn_names import TurnNames
from kvmesh.bounds import UNREADABLE, MaybeName
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.chat.inference import Parsed
from kvmesh.core.members.answer_check import Form
from kvmesh.core.programs.turn import Turn
from kvmesh.transport.http.forward.asked import ASKED_FORMS
from kvmesh.transport.http.forward.plan import ForwardOptions
from kvmesh.transport.http.openai import ENDPOINTS
from kvmesh.transport.http.server.request import Request

SCANNED_BYTES: Final = 1 << 20
LONG_ITEMS: Final = 2_000
"""A scan reads 10 KB/us: longer bodies go to threads, and those beyond `INLINE_BYTES` with more
values, which may be messages to render.
"""


def is_short(asked: Request) -> bool:
    """Return whether a body may be scanned on the event loop."""
    items = LONG_ITEMS if len(asked.body) > INLINE_BYTES else INLINE_ITEMS
    return len(asked.body) <= SCANNED_BYTES and asked.items <= items


def within(
    wished: frozenset[WorkerId] | None, allowed: frozenset[WorkerId] | None
) -> frozenset[WorkerId] | None:
    """Return the workers that a request may go to; None: any."""
    return allowed if wished is None else wished if allowed is None else wished & allowed


def stored_answer(parsed: Parsed) -> str:
    """Return the id of the answer that a request goes on from; "" for what is no name."""
    if not parsed.previous_response_id:
        return ""
    try:
        return msgspec.json.decode(parsed.previous_response_id, type=MaybeName)
    except UNREADABLE:
        return ""


def by_path(options: ForwardOptions) -> dict[str, ForwardOptions]:
    """Return how requests are forwarded that have a prompt, by their path: with the API's form."""
    return {
        path: msgspec.structs.replace(
            options,
            form=cast("Form", endpoint.kind),
            usage=options.usage if endpoint.kind in ASKED_FORMS else None,
        )
        for path, endpoint in ENDPOINTS.items()
        if endpoint.prompt is not None
    }


def within_patience(options: ForwardOptions, timeout_s: float | None) -> ForwardOptions:
    """Return `options` with the client's own deadline, if that is nearer."""
    if timeout_s is None or timeout_s >= (options.deadline_s or inf):
        return options
    return msgspec.structs.replace(options, deadline_s=timeout_s)


def turn_of(names: TurnNames, request_id: str, prompt_tokens: int, wishes: RequestWishes) -> Turn:
    """Return the turn of a request. Of its answer only what its client expects counts: what it
    allows at most is no estimate.
    """
    return Turn(
        request_id=request_id,
        agent=names.agent,
        program=names.program,
        client=names.client,
        tenant=wishes.tenant,
        priority=wishes.priority,
        prompt_tokens=prompt_tokens,
        expected_output_tokens=wishes.output_tokens or 0,
        final=names.final,
    )
