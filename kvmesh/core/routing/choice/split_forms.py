"""Which requests may be prefilled on one worker and decoded on another, by what they ask for.

A prefill worker answers for one prompt with one transfer, and a decode worker that is given it for
several may end with an assertion (`num_decode_blocks <= len(prefill_group)`).
"""

from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE

_ABSENT: Final = msgspec.Raw(b"")
_BLANK: Final = b" \t\r\n"

PROMPTS: Final = "several prompts"
CHOICES: Final = "several answers"
UNREAD: Final = "unreadable body"


class _Form(msgspec.Struct):
    prompt: msgspec.Raw = _ABSENT
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    prompt_embeds: msgspec.Raw = _ABSENT
    kv_transfer_params: msgspec.Raw = _ABSENT
    bootstrap_room: msgspec.Raw = _ABSENT


_forms = msgspec.json.Decoder(_Form)
_lists = msgspec.json.Decoder(list[msgspec.Raw])


def why_whole(body: bytes) -> str:
    """Return why a completion or chat may not be split, "" if it may. O(bytes)."""
    try:
        form = _forms.decode(body)
        if _prompts(form.prompt) != 1:
            return PROMPTS
    except UNREADABLE:
        return UNREAD
    asked = {
        CHOICES: any(count is not None and count > 1 for count in (form.n, form.best_of)),
        "beam search": bool(form.use_beam_search),
        "echo": bool(form.echo),
        "prompt_logprobs": form.prompt_logprobs is not None,
        "prompt_embeds": _given(form.prompt_embeds),
        "a transfer of its own": _given(form.kv_transfer_params) or _given(form.bootstrap_room),
    }
    return next((why for why, is_asked in asked.items() if is_asked), "")


def _prompts(prompt: msgspec.Raw) -> int:
    """Return how many prompts a completion has; a chat, which has none there, counts as one."""
    if not bytes(prompt).lstrip(_BLANK).startswith(b"["):
        return 1
    items = _lists.decode(prompt)
    is_ids = bool(items) and bytes(items[0]).lstrip(_BLANK)[:1] not in {b'"', b"["}
    return 1 if is_ids else len(items)


def _given(field: msgspec.Raw) -> bool:
    return bytes(field).strip(_BLANK) not in {b"", b"null"}
