"""Answers in the very shape of vLLM's: field order, nulls, chunk by chunk.

vLLM leaves out of a chunk what was never set, and writes null for what was set to nothing; whole
answers have every field.
Source: vllm/entrypoints/openai/{chat_completion,completion}/serving.py (0.32).
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from kvmesh_lab.mocker.model.answer import FinishReason

DONE: Final = b"data: [DONE]\n\n"
Json = dict[str, object]
_encode = msgspec.json.Encoder().encode


class ChoicePart(msgspec.Struct, frozen=True):
    """What one choice adds: the text of some tokens, and with the last of them why it ended.

    `token_ids` is None unless the request asked for ids.
    """

    index: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    token_ids: Sequence[int] | None = None


class Counts(msgspec.Struct, frozen=True):
    """Token counts so far. `cached` is None where vLLM gives no details."""

    prompt: int
    completion: int
    cached: int | None = None


class Header(msgspec.Struct, frozen=True):
    """What every chunk of an answer repeats. `created` is seconds since 1970.

    `transfer` comes with a whole answer only: where the prompt's KV cache may be fetched.
    """

    response_id: str
    created: int
    model: str
    fingerprint: str
    transfer: Mapping[str, object] | None = None


class Shape(Protocol):
    """How one endpoint words an answer. Chunks are whole server-sent events."""

    def opening(self, choices: int, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return what comes before the first token."""
        ...

    def chunk(self, part: ChoicePart, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return the chunk of `part`; `prompt_ids` only with a choice's first one."""
        ...

    def end(self, counts: Counts, *, include_usage: bool) -> bytes:
        """Return what comes behind the last token, with the usage if it was asked for."""
        ...

    def whole(
        self,
        parts: Sequence[ChoicePart],
        prompt_ids: Sequence[Sequence[int]] | None,
        counts: Counts,
    ) -> bytes:
        """Return the answer of a request that does not stream; `prompt_ids` one a choice."""
        ...


class ChatShape:
    """/v1/chat/completions. `with_usage`: every chunk reports usage (continuous_usage_stats).

    `fingerprint_at_end`: the last chunk of a choice has it, because no usage chunk follows.
    """

    def __init__(self, header: Header, *, with_usage: bool, fingerprint_at_end: bool) -> None:
        self._header = header
        self._with_usage = with_usage
        self._fingerprint_at_end = fingerprint_at_end

    def opening(self, choices: int, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return one chunk a choice with the role and empty content."""
        chunks: list[bytes] = []
        for index in range(choices):
            choice: Json = {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            chunk = self._start([choice])
            if self._with_usage:
                chunk["usage"] = _usage(counts) | {"completion_tokens_details": None}
            chunk["prompt_token_ids"] = prompt_ids
            chunk["prompt_text"] = None
            chunks.append(_event(chunk))
        return b"".join(chunks)

    def chunk(self, part: ChoicePart, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return a content delta; with the last one finish and stop reason."""
        del prompt_ids
        choice: Json = {
            "index": part.index,
            "delta": {"content": part.text},
            "logprobs": None,
            "finish_reason": part.finish_reason,
        }
        if part.finish_reason is not None:
            choice["stop_reason"] = part.stop_reason
        choice["token_ids"] = part.token_ids
        chunk = self._start([choice])
        if self._with_usage:
            chunk["usage"] = _usage(counts) | {"completion_tokens_details": None}
        if part.finish_reason is not None and self._fingerprint_at_end:
            chunk["system_fingerprint"] = self._header.fingerprint
        return _event(chunk)

    def end(self, counts: Counts, *, include_usage: bool) -> bytes:
        """Return the usage chunk, whose nulls are left out, and `DONE`."""
        return _end(self._header, "chat.completion.chunk", counts) if include_usage else DONE

    def whole(
        self,
        parts: Sequence[ChoicePart],
        prompt_ids: Sequence[Sequence[int]] | None,
        counts: Counts,
    ) -> bytes:
        """Return the chat completion."""
        header = self._header
        return _encode(
            _chunk_head(header, "chat.completion", [_chat_choice(part) for part in parts])
            | {
                "service_tier": None,
                "system_fingerprint": header.fingerprint,
                "usage": _whole_usage(counts),
                "prompt_logprobs": None,
                "prompt_token_ids": prompt_ids[0] if prompt_ids else None,
                "prompt_text": None,
                "kv_transfer_params": header.transfer,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _start(self, choices: list[Json]) -> Json:
        return _chunk_head(self._header, "chat.completion.chunk", choices)


class CompletionShape:
    """/v1/completions. The arguments are those of `ChatShape`."""

    def __init__(self, header: Header, *, with_usage: bool, fingerprint_at_end: bool) -> None:
        self._header = header
        self._with_usage = with_usage
        self._fingerprint_at_end = fingerprint_at_end

    def opening(self, choices: int, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return nothing: the first token comes first."""
        del choices, prompt_ids, counts
        return b""

    def chunk(self, part: ChoicePart, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return the chunk of `part`; all its fields are always there."""
        choice: Json = {
            "index": part.index,
            "text": part.text,
            "logprobs": None,
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            "prompt_token_ids": prompt_ids,
            "token_ids": part.token_ids,
        }
        chunk = _chunk_head(self._header, "text_completion", [choice])
        if self._with_usage:
            chunk["usage"] = _usage(counts)
        if part.finish_reason is not None and self._fingerprint_at_end:
            chunk["system_fingerprint"] = self._header.fingerprint
        return _event(chunk)

    def end(self, counts: Counts, *, include_usage: bool) -> bytes:
        """Return the usage chunk, whose nulls are left out, and `DONE`."""
        return _end(self._header, "text_completion", counts) if include_usage else DONE

    def whole(
        self,
        parts: Sequence[ChoicePart],
        prompt_ids: Sequence[Sequence[int]] | None,
        counts: Counts,
    ) -> bytes:
        """Return the text completion."""
        header = self._header
        ids: Sequence[Sequence[int] | None] = prompt_ids or [None] * len(parts)
        return _encode(
            _chunk_head(header, "text_completion", list(map(_text_choice, parts, ids)))
            | {
                "service_tier": None,
                "system_fingerprint": header.fingerprint,
                "usage": _whole_usage(counts),
                "kv_transfer_params": header.transfer,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )


def _event(chunk: Json) -> bytes:
    return b"data: %b\n\n" % _encode(chunk)


def _chunk_head(header: Header, kind: str, choices: list[Json]) -> Json:
    return {
        "id": header.response_id,
        "object": kind,
        "created": header.created,
        "model": header.model,
        "choices": choices,
    }


def _end(header: Header, kind: str, counts: Counts) -> bytes:
    chunk = _chunk_head(header, kind, [])
    chunk["usage"] = _usage(counts, details=True)
    chunk["system_fingerprint"] = header.fingerprint
    return _event(chunk) + DONE


def _usage(counts: Counts, *, details: bool = False) -> Json:
    usage: Json = {
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.prompt + counts.completion,
        "completion_tokens": counts.completion,
    }
    if details and counts.cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cached}
    return usage


def _whole_usage(counts: Counts) -> Json:
    usage = _usage(counts)
    details: Json | None = None
    if counts.cached is not None:
        details = {
            "cached_tokens": counts.cached,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
    return usage | {"prompt_tokens_details": details, "completion_tokens_details": None}


def _chat_choice(part: ChoicePart) -> Json:
    return {
        "index": part.index,
        "message": {
            "role": "assistant",
            "content": part.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": None,
        "finish_reason": part.finish_reason,
        "stop_reason": part.stop_reason,
        "token_ids": part.token_ids,
        "routed_experts": None,
    }


def _text_choice(part: ChoicePart, prompt_ids: Sequence[int] | None) -> Json:
    return {
        "index": part.index,
        "text": part.text,
        "logprobs": None,
        "finish_reason": part.finish_reason,
        "stop_reason": part.stop_reason,
        "token_ids": part.token_ids,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "routed_experts": None,
    }
