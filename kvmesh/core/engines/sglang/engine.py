"""SGLang."""

from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.inference import Parsed
from kvmesh.core.chat.prompt_form import (
    PLAIN,
    PromptForm,
    common_form,
    is_set,
    whole_number,
)
from kvmesh.core.chat.template_call import TemplateCall, TemplateTraits
from kvmesh.core.engines.engine import Engine, PromptIds, Words
from kvmesh.core.engines.sglang.handshake import BOOTSTRAP
from kvmesh.core.engines.sglang.interview import identify, recognise
from kvmesh.core.engines.sglang.load import GAUGES, STREAM, decode_loads


def sglang_form(parsed: Parsed, kind: str) -> PromptForm:
    """Return the form: a completion that is echoed with logprobs is computed whole.

    It takes no `truncate_prompt_tokens`, no `prompt_logprobs` and no `add_special_tokens`.
    """
    if (common := common_form(parsed)) is not None:
        return common
    if kind in {"messages", "responses"}:
        return PromptForm("rendering")
    if kind == "completions" and is_set(parsed.echo) and (whole_number(parsed.logprobs) or 0) > 0:
        return PromptForm(computed=True)
    return PLAIN


class _Extension(msgspec.Struct):
    input_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    sglext: _Extension | None = None


_answers = msgspec.json.Decoder(_Answer)


def read_prompt_ids(answer: bytes) -> list[int] | None:
    """Return the ids in `sglext`."""
    try:
        extension = _answers.decode(answer).sglext
    except UNREADABLE:
        return None
    return None if extension is None else extension.input_ids


def _chat(chat: ChatInput, template: TemplateTraits) -> TemplateCall:
    from kvmesh.core.engines.sglang.chat import sglang_call  # noqa: PLC0415 - as in `plain_chat`

    return sglang_call(chat, template)


SGLANG: Final = Engine(
    name="sglang",
    title="SGLang",
    salt_fields=("cache_salt", "extra_key"),
    unsalted_paths=("/v1/messages", "/v1/embeddings"),
    foreign_fields=frozenset(
        {
            *("session_params", "previous_response_id", "disagg_prefill_dp_rank"),
            *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
        }
    ),
    recognise=recognise,
    identify=identify,
    chat=_chat,
    form=sglang_form,
    gauges=GAUGES,
    read_loads=decode_loads,
    load_stream=STREAM,
    connectors=(BOOTSTRAP,),
    caches_late=True,
    prompt_ids=PromptIds(
        read_prompt_ids, headers=((b"x-sglext-return-input-ids", b"1"),), since="0.5.22"
    ),
    words=Words(
        oldest_with_events=(0, 4, 7),
        oldest_that_lists=(0, 5, 14),
        newest_read=(0, 5, 23),
        publish="--kv-events-config",
        cache="without --disable-radix-cache",
        larger_blocks="start SGLang with --page-size 16 or more",
        report_cached="--enable-cache-report",
    ),
)
