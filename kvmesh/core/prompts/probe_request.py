"""Asking an engine which token ids it makes of a prompt, with a request made from a client's."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.media import Sent
from kvmesh.core.prompts.media_tokens import Told
from kvmesh.core.prompts.parity import RETURN_IDS_FIELDS
from kvmesh.errors import CodecError

_ONE_TOKEN: Final[Mapping[str, msgspec.Raw]] = {
    **RETURN_IDS_FIELDS,
    "stream": msgspec.Raw(b"false"),
    "max_tokens": msgspec.Raw(b"1"),
    "n": msgspec.Raw(b"1"),
}
_DROPPED: Final = frozenset(
    {
        *("stream_options", "max_completion_tokens", "max_output_tokens", "min_tokens", "best_of"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "echo", "use_beam_search", "kvmesh"),
        *("request_id", "rid", "kv_transfer_params", "priority"),
    }
)
_KEPT_BY_TOKENIZE: Final = ("model", "tools", "chat_template_kwargs", "chat_template")

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def one_token_body(body: bytes) -> bytes:
    """Return a client's chat or completion as a request for one token and the prompt's ids.

    All that decides the prompt is kept byte for byte. Some kinds of engine tell the ids only with
    `parity.RETURN_IDS_HEADERS`, too. Raises `CodecError`.
    """
    try:
        fields = _fields.decode(body)
    except UNREADABLE as error:
        raise CodecError(f"request body of {len(body)} bytes: {error}") from error
    kept = {name: value for name, value in fields.items() if name not in _DROPPED}
    return msgspec.json.encode({**kept, **_ONE_TOKEN})


def tokenize_body(fields: Mapping[str, msgspec.Raw], messages: Sequence[msgspec.Raw]) -> bytes:
    """Return the body of `/tokenize` for the first `messages` of a chat, no answer begun.

    `fields` are the chat's own; those that change what its template renders are kept.
    """
    kept = {name: fields[name] for name in _KEPT_BY_TOKENIZE if fields.get(name)}
    return msgspec.json.encode({**kept, "messages": list(messages), "add_generation_prompt": False})


class _Tokenized(msgspec.Struct):
    tokens: list[int]


_tokenized = msgspec.json.Decoder(_Tokenized)


def tokenized_ids(answer: bytes) -> list[int] | None:
    """Return the ids of a `/tokenize` answer; None when it holds none."""
    try:
        return _tokenized.decode(answer).tokens
    except UNREADABLE:
        return None


MOST_NAME: Final = 256
_RENDER: Final = "/v1/chat/completions/render"


def media_question(model: str, sent: Sent) -> tuple[str, bytes]:
    """Return the path and the body that ask an engine what it makes of a chat of media alone:
    `/tokenize`, which tells no name, where it is told one.
    """
    message = {"role": "user", "content": [msgspec.Raw(sent.part())]}
    body = {"model": model, "messages": [message], "add_generation_prompt": False}
    if sent.named:
        return "/tokenize", msgspec.json.encode(body)
    return _RENDER, msgspec.json.encode(body | {"mm_payload": "none"})


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str]]


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    features: _Features


_rendered = msgspec.json.Decoder(_Rendered)


def media_told(answer: bytes, sent: Sent) -> Told:
    """Return what an engine answered to `media_question`; no ids where it tells not all that it was
    asked for.
    """
    if sent.named:
        return Told(tokenized_ids(answer) or ())
    try:
        told = _rendered.decode(answer)
    except UNREADABLE:
        return Told(())
    names = [name for one in told.features.mm_hashes.values() for name in one]
    if len(names) != 1 or not 0 < len(names[0]) <= MOST_NAME or not names[0].isprintable():
        return Told(())
    return Told(told.token_ids, names[0])
