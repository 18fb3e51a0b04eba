"""vLLM."""

from itertools import islice
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import ChatInput, KeepMedia
from kvmesh.core.chat.inference import Parsed
from kvmesh.core.chat.template_call import TemplateCall, TemplateTraits
from kvmesh.core.engines.engine import Engine, PromptIds, Words
from kvmesh.core.engines.vllm.anthropic import BILLING_HEADER, chat_of_messages
from kvmesh.core.engines.vllm.fetch import FETCHES
from kvmesh.core.engines.vllm.forms import vllm_form
from kvmesh.core.engines.vllm.handshake import CONNECTORS
from kvmesh.core.engines.vllm.interview import GAUGES, identify, recognise
from kvmesh.core.engines.vllm.responses import chat_of_response
from kvmesh.errors import RequestError


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
    except UNREADABLE:
        return None
    if decoded.prompt_token_ids is not None:
        return decoded.prompt_token_ids
    first = next(islice(decoded.choices, 1), None)
    return None if first is None else first.prompt_token_ids


def _chat(chat: ChatInput, template: TemplateTraits) -> TemplateCall:
    from kvmesh.core.engines.vllm.chat import vllm_call  # noqa: PLC0415 - as in `plain_chat`

    return vllm_call(chat, template)


def _turns(parsed: Parsed, kind: str, keep: KeepMedia) -> ChatInput:
    try:
        read = chat_of_response if kind == "responses" else chat_of_messages
        return read(parsed, keep)
    except UNREADABLE as error:
        raise RequestError(f"prompt: {error}") from error


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
    turns=_turns,
    form=vllm_form,
    chat_marks=(BILLING_HEADER,),
    gauges=GAUGES,
    connectors=CONNECTORS,
    fetches=FETCHES,
    prompt_ids=PromptIds(read_prompt_ids, fields={"return_token_ids": b"true"}, since="0.10.2"),
    stream_ids=True,
    names_media=True,
    words=Words(
        oldest_with_events=(0, 9, 0),
        oldest_that_lists=(0, 31, 0),
        newest_read=(0, 33),
        publish="--kv-events-config",
        cache="with --enable-prefix-caching",
        report_cached="--enable-prompt-tokens-details",
        tell_names="--enable-scale-out",
    ),
)
