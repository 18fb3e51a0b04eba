"""In which form a request asks for its prompt, as far as that decides what an engine reuses."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

import msgspec

from kvmesh.bounds import MAX_TOKENS, UNREADABLE
from kvmesh.core.chat.inference import Parsed

Unforeseen = Literal[
    "",
    "batch",
    "beginning",
    "continued",
    "doubted",
    "embeds",
    "extra_key",
    "logprobs",
    "media",
    "rendering",
    "siblings",
    "stored",
    "template",
    "truncated",
    "unread",
]
"""Why it is not foretold how much of a prompt an engine reuses; "": it is."""

REASONS: Final[Mapping[Unforeseen, str]] = {
    "batch": "several prompts: routed by the first, and the engine reports one number for all",
    "beginning": "only the beginning of so long a prompt is read",
    "continued": "its answer goes on with what another engine began",
    "doubted": "its token ids are not known to be the engine's",
    "embeds": "the prompt is given as embeddings, which have no token ids",
    "extra_key": "its engine keeps what it caches apart by it, and tells of no such key",
    "logprobs": "whether this engine reads its cache where it scores a prompt is not known",
    "media": "only what is in front of an image, sound or video that is not followed is read",
    "rendering": "how the engine renders it is not known",
    "siblings": "several answers: each finds the blocks that the others have just computed",
    "stored": "the conversation before is kept by the engine alone",
    "template": "it brings a chat template of its own",
    "truncated": "which part of the prompt this engine keeps is not known",
    "unread": "nothing of the body is known to be its prompt",
}
assert {"", *REASONS} == set(get_args(Unforeseen))


def in_words(unforeseen: Unforeseen) -> str:
    """Return a reason with what it means; "" for none."""
    return f"{unforeseen}: {REASONS[unforeseen]}" if unforeseen else ""


class PromptForm(msgspec.Struct, frozen=True):
    """How an engine makes token ids of a request's prompt, and whether it looks them up.

    `computed`: it computes all of the prompt and reads nothing of its cache. `special_tokens`: BOS
    and EOS are put around; None: as the API has it. Of a longer prompt `keep` tokens are kept
    (None: all), the last of them if `keeps_end`. `exactly`: special tokens are cut like others;
    otherwise they stay around a text.
    """

    unforeseen: Unforeseen = ""
    computed: bool = False
    special_tokens: bool | None = None
    keep: int | None = None
    keeps_end: bool = True
    exactly: bool = False


PLAIN: Final = PromptForm()
"""The form of a request that asks for nothing unusual."""

ReadForm = Callable[[Parsed, str], PromptForm]
"""The form of a parsed body of that kind of endpoint, as one kind of engine takes it."""

_UNSET: Final = frozenset({b"null", b"false"})


def is_set(raw: msgspec.Raw) -> bool:
    """Return whether a field is there, and neither null nor false."""
    return bool(raw) and bytes(raw) not in _UNSET


def is_given(raw: msgspec.Raw) -> bool:
    """Return whether a field is there and not null."""
    return bool(raw) and bytes(raw) != b"null"


def whole_number(raw: msgspec.Raw) -> int | None:
    """Return the whole number, -1 to `MAX_TOKENS`, that a field holds; None for anything else."""
    try:
        number: int = msgspec.json.decode(raw, type=int)
    except UNREADABLE:
        return None
    return number if -1 <= number <= MAX_TOKENS else None


def any_form(parsed: Parsed, kind: str) -> PromptForm:
    """Return the form for an engine of which it is not known what it makes of unusual fields."""
    if (common := common_form(parsed)) is not None:
        return common
    if is_given(parsed.prompt_logprobs) or is_set(parsed.echo):
        return PromptForm("logprobs")
    if is_given(parsed.truncate_prompt_tokens):
        return PromptForm("truncated")
    if kind in {"messages", "responses"} or is_given(parsed.add_special_tokens):
        return PromptForm("rendering")
    return PLAIN


def common_form(parsed: Parsed) -> PromptForm | None:
    """Return the form of what no engine's reuse is foretold for; None for all else."""
    if is_set(parsed.prompt_embeds):
        return PromptForm("embeds")
    if is_given(parsed.previous_response_id):
        return PromptForm("stored")
    if is_given(parsed.chat_template):
        return PromptForm("template")
    best_of = whole_number(parsed.best_of) if parsed.best_of else None
    many = parsed.n is not None and parsed.n > 1
    if many or (best_of or 0) > 1 or is_set(parsed.use_beam_search):
        return PromptForm("siblings")
    return None


def keep_tokens(packed: bytes | str, affixes: tuple[bytes, bytes], form: PromptForm) -> bytes | str:
    """Return what the engine keeps of a prompt's token ids: u32s, or code points.

    `affixes` are the special tokens that are around them.
    """
    keep = form.keep
    if keep is None:
        return packed
    width = 1 if isinstance(packed, str) else 4
    if len(packed) <= keep * width:
        return packed
    if isinstance(packed, str) or form.exactly or not any(affixes):
        most = keep * width
        return packed[len(packed) - most :] if form.keeps_end else packed[:most]
    head, tail = affixes
    inner = packed[len(head) : len(packed) - len(tail)]
    most = max(0, keep * width - len(head) - len(tail))
    inner = inner[len(inner) - most :] if form.keeps_end else inner[:most]
    return head + inner + tail
