"""How a stream may go on at another engine when its own is lost: known from its request alone.

Two ways are exact. By token ids: prompt and answer so far are the prompt of a completion, whose
text is what the chat's would have been as long as nothing parses it (tools, structured output) and
nothing looks back over the cut (stop strings, penalties of what was said). By sending the same
again, and leaving out what the client has: that needs an answer that comes out the same, and takes
the time of all of it. Measured: docs/measured/streams.md.
"""

from typing import Final, Literal

import msgspec

from kvmesh.bounds import UNREADABLE

Word = Literal["exact", "continued", "no"]
"""What a client may count on: the very answer it would have got; one like it (sampled anew from the
cut on); nothing.
"""

_NOTHING: Final = frozenset({b"", b"null", b"false", b"[]", b"{}", b'""', b"0", b"0.0"})
_ONE: Final = frozenset({b"null", b"1"})
_MARK: Final = b'"return_token_ids":true,'
_LAST_MARK: Final = b',"return_token_ids":true}'
_MEDIA: Final = (b'"image_url"', b'"input_audio"', b'"audio_url"', b'"video_url"', b'"image_pil"')


class StreamForm(msgspec.Struct, frozen=True, gc=False):
    """What may be done for one stream. `by_ids`: from its token ids, which are asked for;
    `again`: by the same request once more. `why` says what stands against it, "" for nothing.
    """

    word: Word
    by_ids: bool = False
    again: bool = False
    why: str = ""

    def in_words(self) -> str:
        """Return the word, with why it is no better."""
        return f"{self.word}: {self.why}" if self.why else self.word


GREEDY: Final = StreamForm("exact", by_ids=True, again=True)
SAMPLED: Final = StreamForm("continued", by_ids=True)
REPEATED: Final = StreamForm("exact", again=True)


SAME: Final = (
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty"),
    *("logit_bias", "bad_words", "allowed_token_ids", "stop_token_ids", "ignore_eos"),
    *("min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "user", "priority"),
    *("cache_salt", "stream_options", "kvmesh", "prompt_cache_key", "request_id"),
)
"""Fields that mean the same in a chat and in the completion that goes on with it: how tokens are
drawn, and what is for others than the engine.
"""

_PLAIN: Final = frozenset(
    {
        *SAME,
        *("messages", "stream", "max_tokens", "max_completion_tokens", "prompt", "n", "best_of"),
        *("include_stop_str_in_output", "truncate_prompt_tokens", "add_special_tokens"),
        *("chat_template", "chat_template_kwargs", "documents", "reasoning_effort"),
        *("add_generation_prompt", "continue_final_message", "parallel_tool_calls"),
        *("tool_choice", "safety_identifier", "service_tier", "metadata", "store"),
        "return_token_ids",
    }
)
"""What may stand in a body that is continued by ids: besides these what is asked anew, is spent
once the prompt is rendered, or says nothing to an engine.
"""

_USUAL: Final = _PLAIN - {"n", "best_of", "prompt"}
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

_EMPTIED: Final = {"messages": msgspec.Raw(b"[]"), "prompt": msgspec.Raw(b'""')}
_NEVER: Final = ("prompt_logprobs", "use_beam_search", "echo", "logprobs", "kv_transfer_params")


def form_of(body: bytes, kind: str) -> StreamForm:
    """Return how a stream of this request may go on; `kind` is the API's, as in `ApiEndpoint`.

    O(bytes): 0.8 us for 400 B, 22 us for 100 KB.
    """
    if kind not in ("chat", "completions"):
        return _no(f"the {kind} API")
    try:
        fields = _fields.decode(body)
    except UNREADABLE:
        return _no("a body that is not read")
    parsed = ""
    if kind != "chat" or not fields.keys() <= _USUAL:
        if why := _why_never(fields, kind):
            return _no(why)
        parsed = next((one for one in fields if one not in _PLAIN and _has(fields, one)), "")
    if kind == "chat" and not parsed and any(mark in body for mark in _MEDIA):
        parsed = "media"
    greedy = "temperature" in fields and _is_zero(bytes(fields["temperature"]))
    if parsed:
        return REPEATED if greedy else _no(f"{parsed}, sampled")
    return GREEDY if greedy else SAMPLED


def with_ids(body: bytes) -> bytes:
    """Return a body that asks for token ids, too; a client's own word on it comes later, and
    counts. The rest is its own bytes.
    """
    brace = body.index(b"{") + 1
    return b"%b%b%b" % (body[:brace], _MARK, body[brace:])


def unmarked(body: bytes) -> bytes:
    """Return the body of `with_ids` as it was before; any other as it is."""
    brace = body.find(b"{") + 1
    marked = body.startswith(_MARK, brace)
    return body[:brace] + body[brace + len(_MARK) :] if marked else body


def without_ids(body: bytes) -> bytes:
    """Return the body of what goes on by ids without the field that asks for more of them, which
    is its last.
    """
    return b"%b}" % body.removesuffix(_LAST_MARK)


def without_prompt(body: bytes) -> bytes:
    """Return a body with nothing in its messages or prompt: what else a stream goes on with."""
    fields = _fields.decode(body)
    left = {name: _EMPTIED.get(name, value) for name, value in fields.items()}
    return msgspec.json.encode(left)


def asks_ids(body: bytes) -> bool:
    """Return whether a body asks for token ids itself."""
    if b'"return_token_ids"' not in body:
        return False
    try:
        return bytes(_fields.decode(body).get("return_token_ids", b"")) == b"true"
    except UNREADABLE:
        return False


def _why_never(fields: dict[str, msgspec.Raw], kind: str) -> str:
    for name in _NEVER:
        if name in fields and _has(fields, name):
            return name
    for name in ("n", "best_of"):
        if name in fields and bytes(fields[name]) not in _ONE:
            return f"{name} above 1"
    if kind == "completions" and not _is_one_prompt(bytes(fields.get("prompt", b""))):
        return "several prompts"
    return ""


def _has(fields: dict[str, msgspec.Raw], name: str) -> bool:
    return bytes(fields[name]) not in _NOTHING


def _is_one_prompt(prompt: bytes) -> bool:
    """Return whether a completion has one prompt: a text, or one list of token ids."""
    if prompt.startswith(b'"'):
        return True
    return prompt.startswith(b"[") and prompt[1:].lstrip()[:1].isdigit()


def _is_zero(number: bytes) -> bool:
    try:
        return bool(number) and float(number) == 0.0
    except ValueError:
        return False


def _no(why: str) -> StreamForm:
    return StreamForm("no", why=why)
