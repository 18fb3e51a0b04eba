"""vLLM."""

from itertools import islice
from typing import Final

import msgspec

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.template_call import TemplateCall, TemplateTraits
from kvmesh.core.engines.engine import Engine, PromptIds, Words
from kvmesh.core.engines.vllm.handshake import TRANSFER
from kvmesh.core.engines.vllm.interview import identify, recognise
from kvmesh.core.engines.vllm.load import GAUGES


class _Choice(msgspec.Struct):
    prompt_token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    prompt_token_ids: list[int] | None = None
    choices: list[_Choice] = []


_answers = msgspec.json.Decoder(_Answer)


def read_prompt_ids(answer: bytes) -> list[int] | None:
    """Return the ids of a chat, beside `choices`, or of a completion, inside."""
    try:
        decoded = _answers.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if decoded.prompt_token_ids is not None:
        return decoded.prompt_token_ids
    first = next(islice(decoded.choices, 1), None)
    return None if first is None else first.prompt_token_ids


def _chat(chat: ChatInput, template: TemplateTraits) -> TemplateCall:
    from kvmesh.core.engines.vllm.chat import vllm_call  # noqa: PLC0415 - as in `plain_chat`

    return vllm_call(chat, template)


VLLM: Final = Engine(
    name="vllm",
    title="vLLM",
    salt_fields=("cache_salt",),
    foreign_fields=frozenset({"kv_transfer_params", "ec_transfer_params", "previous_response_id"}),
    nested_fields=("vllm_xargs",),
    unsalted_paths=(),
    recognise=recognise,
    identify=identify,
    chat=_chat,
    chat_marks=("x-anthropic-billing-header",),
    gauges=GAUGES,
    handshake=TRANSFER,
    prompt_ids=PromptIds(read_prompt_ids, fields={"return_token_ids": b"true"}, since="0.10.2"),
    words=Words(
        oldest_with_events=(0, 9, 0),
        oldest_that_lists=(0, 31, 0),
        publish="--kv-events-config",
        cache="with --enable-prefix-caching",
        report_cached="--enable-prompt-tokens-details",
    ),
)
