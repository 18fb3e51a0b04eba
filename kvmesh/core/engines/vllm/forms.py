"""What vLLM makes of a prompt's form.

Source: vLLM 0.32 `sampling_params.py`, `renderers/params.py`, `tokenizers/registry.py`,
`entrypoints/openai/{completion,chat_completion}/protocol.py`.
"""

from typing import Final

from kvmesh.core.chat.inference import Parsed
from kvmesh.core.chat.prompt_form import (
    PLAIN,
    PromptForm,
    Unforeseen,
    common_form,
    is_given,
    is_set,
    whole_number,
)

_FALSE: Final = b"false"
_TRUE: Final = b"true"
_LEFT: Final = b'"left"'
_POOLED: Final = "embeddings"
_SCORED: Final = {"chat", "completions"}
"""Where a prompt may be scored, cut and stripped of its special tokens."""


def vllm_form(parsed: Parsed, kind: str) -> PromptForm:
    """Return the form: a prompt that is scored is computed whole, whatever is cached of it."""
    if (common := common_form(parsed)) is not None:
        return common
    if kind not in _SCORED and kind != _POOLED:
        return PLAIN
    computed = kind in _SCORED and _is_scored(parsed, kind)
    cut = parsed.truncate_prompt_tokens
    if not (computed or cut or parsed.add_special_tokens):
        return PLAIN
    special = bytes(parsed.add_special_tokens)
    keep = whole_number(cut) if is_given(cut) else None
    unforeseen: Unforeseen = "truncated" if is_given(cut) and keep is None else ""
    side = bytes(parsed.truncation_side)
    exactly = is_given(parsed.truncation_side)
    return PromptForm(
        unforeseen,
        computed=computed,
        special_tokens={_TRUE: True, _FALSE: False}.get(special),
        # -1 is the model's context: a prompt that fits stays whole.
        keep=keep if keep is not None and keep >= 0 else None,
        keeps_end=side == _LEFT if exactly else kind != _POOLED,
        exactly=exactly,
    )


def _is_scored(parsed: Parsed, kind: str) -> bool:
    if is_given(parsed.prompt_logprobs):
        return True
    # A chat's `top_logprobs` is 0 where it is not given, which asks for the prompt's own.
    return is_set(parsed.echo) and (kind == "chat" or is_given(parsed.logprobs))
