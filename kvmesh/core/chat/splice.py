"""Events of another engine's answer, turned into what the first one would have sent next.

Ids, times and the model's name are those that the client has seen; usage is counted once. Nothing
is passed twice, and nothing that does not follow: where the same answer was to come again and
does not, the splice says so (`DivergedError`).
"""

from abc import ABC, abstractmethod
from typing import Final, Protocol

import msgspec

from kvmesh._native import text_hash
from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.kept import Kept, Text
from kvmesh.core.chat.stream_marks import behind_again
from kvmesh.errors import KvMeshError

JsonObject = dict[str, object]

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"
_END: Final = b"\n\n"
_EMPTY: Final = b'""'
_NULL: Final = b"null"
_RAW: Final = msgspec.Raw
_BEGUN: Final = frozenset({"id", "type"})
_NAMES: Final = ("id", "created", "model")
_CHECKED: Final = 0xFFFFFFFF
"""Of a text's hash so much is compared: marks of events have no more."""

_events: Final = msgspec.json.Decoder(JsonObject)
_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raws: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class _Names(msgspec.Struct, omit_defaults=True):
    """What all events of a stream have in common."""

    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    object: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    created: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    model: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_first: Final = msgspec.json.Decoder(_Names)


class DivergedError(KvMeshError):
    """An engine was asked for the same answer again, and gave another."""


class Seen(msgspec.Struct, frozen=True):
    """What the client has of a stream. `opening` is its first event's JSON, as it was passed;
    `cached_tokens` what the first engine found of the prompt, None where nobody knows. Not
    `opened`: the client has not even its first event.
    """

    kept: Kept
    opening: bytes = b""
    cached_tokens: int | None = None
    opened: bool = True


class Splice(Protocol):
    """Turns what another engine sends into what the client gets."""

    @property
    def past(self) -> tuple[int, int]:
        """Return the tokens of the prompt, and of the answer that came before."""
        ...

    def feed(self, events: bytes) -> bytes:
        """Return what to pass on of whole events. Raises `DivergedError`."""
        ...

    def seen(self, kept: Kept) -> Seen:
        """Return what the client has when the other engine's answer has passed so far."""
        ...


class _Spliced(ABC):
    """What both ways share: the first engine's names, and events one by one."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        opening = _opening_of(seen)
        self._names: JsonObject = {name: opening[name] for name in _NAMES if name in opening}

    @property
    def past(self) -> tuple[int, int]:
        """Return the tokens of the prompt, and of the answer that came before."""
        kept = self._seen.kept
        return len(kept.prompt_ids) // 4, len(kept.token_ids) // 4

    def feed(self, events: bytes) -> bytes:
        """Return what to pass on of whole events; what is no data passes as it is. Raises
        `DivergedError`.
        """
        passed: list[bytes] = []
        for block in events.split(_END):
            if block.startswith(_DATA) and not block.endswith(_DONE):
                passed.append(self._take(block[len(_DATA) :]))
            elif block:
                passed.append(block + _END)
        return b"".join(passed)

    @abstractmethod
    def _take(self, data: bytes) -> bytes:
        """Return what to pass on of one event's data."""

    def _named(self, event: JsonObject) -> JsonObject:
        """Return an event with the names that the client knows."""
        return {name: self._names.get(name, value) for name, value in event.items()}


class TokenSplice(_Spliced):
    """The answer to prompt and tokens so far, as a completion. `kind` is what the client asked,
    `with_ids`: it asked for token ids as well.
    """

    def __init__(self, seen: Seen, kind: str, *, with_ids: bool) -> None:
        super().__init__(seen)
        self._chat = kind == "chat"
        self._with_ids = with_ids

    def seen(self, kept: Kept) -> Seen:
        """Return what the client has by now."""
        return msgspec.structs.replace(self._seen, kept=self._seen.kept.followed_by(kept))

    def _take(self, data: bytes) -> bytes:
        try:
            event = _events.decode(data)
        except UNREADABLE as error:
            raise DivergedError(f"an event that is no JSON object: {error}") from error
        choices = event.get("choices")
        if isinstance(choices, list):
            event["choices"] = [self._dress(one) for one in choices if isinstance(one, dict)]
        if self._chat and "object" in event:
            event["object"] = "chat.completion.chunk"
        usage = event.get("usage")
        if isinstance(usage, dict):
            event["usage"] = self._counted(usage)
        return _event(self._named(event))

    def _dress(self, choice: JsonObject) -> JsonObject:
        """Return a completion's choice as the client's API words it."""
        ids = choice.get("token_ids") if self._with_ids else None
        if not self._chat:
            return {**choice, "prompt_token_ids": None, "token_ids": ids}
        reason = choice.get("finish_reason")
        dressed: JsonObject = {
            "index": choice.get("index", 0),
            "delta": {"content": choice.get("text", "")},
            "logprobs": None,
            "finish_reason": reason,
        }
        if reason is not None:
            dressed["stop_reason"] = choice.get("stop_reason")
        dressed["token_ids"] = ids
        return dressed

    def _counted(self, usage: JsonObject) -> JsonObject:
        """Return the usage of prompt and answer as if one engine had made all of it."""
        prompt, past = self.past
        answer = usage.get("completion_tokens")
        made = past + (answer if isinstance(answer, int) else 0)
        counted = {**usage, "prompt_tokens": prompt, "completion_tokens": made}
        if "total_tokens" in usage:
            counted["total_tokens"] = prompt + made
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and "cached_tokens" in details:
            found = self._seen.cached_tokens
            if found is None and isinstance(details["cached_tokens"], int):
                found = min(details["cached_tokens"], prompt)
            counted["prompt_tokens_details"] = {**details, "cached_tokens": found}
        return counted


class _Skipped:
    """One kind of text, of which what the client has is left out, and compared."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._size = self._digest = 0

    @property
    def over(self) -> bool:
        """Return whether all that the client has has come again."""
        return self._size >= self._text.size

    def take(self, piece: bytes) -> bytes:
        """Return what of a piece is new to the client. Raises `DivergedError`."""
        left = self._text.size - self._size
        if left <= 0:
            return piece
        known = piece[:left]
        self._digest = text_hash(self._digest, known)
        self._size += len(known)
        differs = (self._digest ^ self._text.digest) & _CHECKED
        if self._size == self._text.size and differs:
            raise DivergedError(f"another text than the client has, within {self._size} bytes")
        return piece[left:]


class TextSplice(_Spliced):
    """The same answer once more, of which what the client has is left out."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(seen)
        kept = seen.kept
        self._content = _Skipped(kept.content)
        self._reasoning = _Skipped(kept.reasoning)
        self._arguments = _Skipped(kept.arguments)
        self._calls = self._left_out = 0
        self._opened = not (seen.opening and seen.opened)

    def seen(self, kept: Kept) -> Seen:
        """Return what the client has by now: nothing new until all of it has come again."""
        if not self._over:
            return self._seen
        before = self._seen.kept
        if kept.marks:
            marks = before.marks + behind_again(before, kept, self._left_out)
            kept = msgspec.structs.replace(kept, marks=marks)
        return msgspec.structs.replace(self._seen, kept=kept)

    @property
    def _over(self) -> bool:
        texts = (self._content, self._reasoning, self._arguments)
        return all(one.over for one in texts) and self._calls >= self._seen.kept.tool_calls

    def _take(self, data: bytes) -> bytes:
        over = self._over and self._opened
        try:
            event = _raw.decode(data)
            choices = _raws.decode(event.get("choices", b"[]"))
            left = [one for choice in choices if (one := self._new_of(choice)) is not None]
        except UNREADABLE as error:
            raise DivergedError(f"an event that is no answer: {error}") from error
        if choices and not left:
            self._left_out += 1
            return b""
        if choices and not over:
            event["choices"] = _RAW(msgspec.json.encode(left))
        return _event(self._named(dict(event)))

    def _new_of(self, choice: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw] | None:
        """Return what of a choice the client has not; None for nothing. Raises `DivergedError`."""
        before = self._over
        delta = _raw.decode(choice["delta"]) if "delta" in choice else None
        texts = choice if delta is None else delta
        opening = not self._opened and delta is not None and "role" in delta
        self._opened = True
        changed = False
        for name, skipped in (
            *(("content", self._content), ("text", self._content)),
            *(("reasoning", self._reasoning), ("reasoning_content", self._reasoning)),
        ):
            if len(piece := bytes(texts.get(name, _NULL))) > len(_EMPTY) and piece != _NULL:
                new = skipped.take(piece[1:-1])
                changed = changed or bool(new)
                texts[name] = _RAW(b'"%b"' % new)
        if calls := bytes(texts.get("tool_calls", b"")):
            new_calls = self._new_calls(calls)
            changed = changed or new_calls != b"[]"
            texts["tool_calls"] = _RAW(new_calls)
        if changed and not self._over:
            raise DivergedError("more of one text than the client has, before all of another")
        if delta is not None:
            choice["delta"] = _RAW(msgspec.json.encode(delta))
        if bytes(choice.get("finish_reason", _NULL)) != _NULL:
            if not self._over:
                raise DivergedError("an end before all that the client has")
            return choice
        return choice if changed or (before and not opening) else None

    def _new_calls(self, calls: bytes) -> bytes:
        """Return the tool calls, and pieces of their arguments, that the client has not."""
        if calls == _NULL:
            return b"[]"
        left: list[dict[str, msgspec.Raw]] = []
        for call in _raws.decode(calls):
            over, first = self._over, bytes(call.get("id", _NULL)) != _NULL
            self._calls += first
            begun = first and self._calls <= self._seen.kept.tool_calls
            function = _raw.decode(call.get("function", b"{}"))
            piece = bytes(function.get("arguments", _NULL))
            new = b""
            if piece != _NULL:
                new = self._arguments.take(piece[1:-1])
                function["arguments"] = _RAW(b'"%b"' % new)
            if begun:
                function.pop("name", None)
            if new or over or (first and not begun):
                unknown = {name: call[name] for name in call if not (begun and name in _BEGUN)}
                unknown["function"] = _RAW(msgspec.json.encode(function))
                left.append(unknown)
        return msgspec.json.encode(left)


def _event(event: JsonObject) -> bytes:
    return b"%b%b%b" % (_DATA, msgspec.json.encode(event), _END)


def finish_of(kind: str, seen: Seen) -> bytes:
    """Return the event that says that an answer has all tokens that were allowed."""
    choice: JsonObject = {"index": 0}
    choice |= {"delta": {"content": ""}} if kind == "chat" else {"text": ""}
    choice |= {"logprobs": None, "finish_reason": "length", "stop_reason": None}
    return _event({**_opening_of(seen), "choices": [choice]})


def end_of(fields: JsonObject, seen: Seen) -> bytes:
    """Return what follows the event that says why an answer ended: usage if `fields` of its request
    asked for it and it is known, and the end.
    """
    options, kept = fields.get("stream_options"), seen.kept
    end = b"data: [DONE]\n\n"
    wanted = isinstance(options, dict) and options.get("include_usage") is True
    if not wanted or not kept.prompt_ids or kept.lost:
        return end
    prompt, made = len(kept.prompt_ids) // 4, len(kept.token_ids) // 4
    usage: JsonObject = {"prompt_tokens": prompt, "total_tokens": prompt + made}
    usage["completion_tokens"] = made
    if seen.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": seen.cached_tokens}
    return _event({**_opening_of(seen), "choices": [], "usage": usage}) + end


def names_in(event: bytes) -> bytes:
    """Return of an event's JSON what every event of its stream begins with, b"" for no event: for
    one that is long, as the first is with the ids of its prompt.
    """
    try:
        return msgspec.json.encode(_first.decode(event))
    except UNREADABLE:
        return b""


def _opening_of(seen: Seen) -> JsonObject:
    """Return what every event of the stream begins with."""
    try:
        opening = _events.decode(seen.opening)
    except UNREADABLE:
        return {}
    return {name: opening[name] for name in (*_NAMES[:1], "object", *_NAMES[1:]) if name in opening}
