"""Images, sounds and videos of chats: the names they are known by, put into bodies.

An engine that takes a name (`uuid`) beside a media part keys its blocks by it; without one it
keys them by a hash of its own, which only it can make. Anthropic's messages have no room for one.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import JsonObject, content_parts, part_text

NAME: Final = "uuid"
KINDS: Final[Mapping[str, str]] = {
    "image_url": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
"""Types of content parts, each the key of its content, and what templates are told they are.

Source: vLLM 0.32 `renderers/chat_utils.py`.
"""

LISTS: Final[Mapping[str, str]] = {"chat": "messages", "messages": "messages", "responses": "input"}
"""By kind of endpoint, the field whose items have content with parts of media."""

UNNAMED: Final = "messages"
"""The kind of endpoint whose parts take no name."""

_IMAGE: Final = "image_url"
_INPUT: Final = "input_image"
_BLOCK: Final = "image"
_WORDS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "chat": (b"_url", b"input_audio", b"uuid"),
    "messages": (b"image",),
    "responses": (b"input_image",),
}
_ESCAPED: Final = b"\\u00"
_NULL: Final = msgspec.Raw(b"null")
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list: Final = msgspec.json.Decoder(list[msgspec.Raw])


class MediaPart(msgspec.Struct, frozen=True):
    """A part whose content is in the request: `kind` of it, and the `name` it is known by."""

    kind: str
    name: str


class Sent(msgspec.Struct, frozen=True):
    """Media as they were sent, under a `name` of their own: the `content` (JSON) of a part of that
    `type`. `named`: their engine is told the name.
    """

    name: str
    type: str
    content: msgspec.Raw

    @property
    def named(self) -> bool:
        """Return whether its engine is told the name."""
        return self.type != _BLOCK

    @property
    def media(self) -> MediaPart:
        """Return what it is to a template."""
        return MediaPart(KINDS.get(self.type, "image"), self.name)

    def part(self) -> bytes:
        """Return a chat's part with this content. O(bytes)."""
        if self.type in KINDS:
            content = {"type": self.type, self.type: self.content}
            return msgspec.json.encode({**content, NAME: self.name})
        if self.type == _INPUT:
            url = self.content
            return msgspec.json.encode({"type": _IMAGE, _IMAGE: {"url": url}, NAME: self.name})
        source = _source.decode(self.content)
        begun = msgspec.json.encode(f"data:{source.media_type};base64,")[:-1]
        url = msgspec.Raw(begun + bytes(source.data)[1:])
        return msgspec.json.encode({"type": _IMAGE, _IMAGE: {"url": url}})


class Named(msgspec.Struct, frozen=True):
    """A body whose media are named: what its engine gets; what is read of it, with names in the
    place of their content; and these, each once, in their order.
    """

    body: bytes
    read: bytes
    sent: list[Sent]


def media_part(part: JsonObject) -> MediaPart | None:
    """Return what a named media part is; None for one without a name, or with fields that a
    template might look at.
    """
    key, name = part.get("type"), part.get(NAME)
    kind = KINDS.get(key) if isinstance(key, str) else None
    if kind is None or not isinstance(name, str) or part.keys() - {"type", NAME, key}:
        return None
    return MediaPart(kind, name)


def media_parts(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the parts of a chat that are no text, in their order."""
    parts = (part for one in messages for part in content_parts(one.get("content")) or ())
    return [part for part in parts if isinstance(part, dict) and part_text(part) is None]


def may_hold_media(body: bytes, kind: str = "chat") -> bool:
    """Return whether a body may have a part of media, or a name of one: not whether it has."""
    return any(one in body for one in (*_WORDS[kind], _ESCAPED))


def named_body(body: bytes, salt: str, kind: str) -> Named | None:
    """Return the body of an endpoint of that kind with a name for each media part; None where there
    is none to name.

    Equal content has one name at every router and after every start: engines would compute it again
    under another. Content that is elsewhere (a URL) has none: it may change. A client's own name is
    replaced, too: it is none of content, nor of another `salt`, so that no part can have the name
    of another's content. All other values stay as they were sent. O(bytes), some milliseconds a
    megabyte; may run in a thread.
    """
    naming = _Naming(salt)
    item = {"chat": naming.chat_item, "messages": naming.turn, "responses": naming.input_item}[kind]
    try:
        made = _replaced(body, LISTS[kind], item)
    except UNREADABLE:
        return None
    if made is None:
        return None
    return Named(body if kind == UNNAMED else made[0], made[1], list(naming.sent.values()))


_Fields = Mapping[str, msgspec.Raw]
_Two = tuple[bytes, bytes]
"""JSON for an engine, and as it is read here."""


def _replaced(raw: bytes, key: str, made: Callable[[bytes], _Two | None]) -> _Two | None:
    """Return an object with what is `made` of the items of the list under `key`; None where of none
    of them anything is.
    """
    fields = _fields.decode(raw)
    listed = fields.get(key, msgspec.Raw(b""))
    if bytes(memoryview(listed)[:1]) != b"[":
        return None
    items = _list.decode(listed)
    found = [made(one) for one in items]
    if not any(found):
        return None

    def whole(side: int) -> bytes:
        kept = zip(items, found, strict=True)
        named = [old if new is None else msgspec.Raw(new[side]) for old, new in kept]
        return msgspec.json.encode(fields | {key: msgspec.Raw(msgspec.json.encode(named))})

    return whole(0), whole(1)


class _Naming:
    """Names the parts of one body; `sent` are those with content, by name."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self.sent: dict[str, Sent] = {}

    def chat_item(self, raw: bytes) -> _Two | None:
        return _replaced(raw, "content", self._chat_part)

    def input_item(self, raw: bytes) -> _Two | None:
        return _replaced(raw, "content", self._input_part)

    def turn(self, raw: bytes) -> _Two | None:
        # What an assistant says of a result is printed as it was sent.
        user = _text_of(_fields_of(raw).get("role")) == "user"
        inside = "tool_result" if user else None
        return _replaced(raw, "content", partial(self._block, inside=inside))

    def _chat_part(self, raw: bytes) -> _Two | None:
        part = _fields_of(raw)
        key = _text_of(part.get("type"))
        content = part.get(key, _NULL)
        name = self._given(part)
        if not name:
            if key not in KINDS or not _is_sent(content, key):
                return None
            name = self._name(key.encode(), content)
        read = {**part, key: _NULL} if key in KINDS else part
        return self._made(Sent(name, key, content), part, read)

    def _input_part(self, raw: bytes) -> _Two | None:
        """Name an image of the responses API: to a chat it is one, and its `detail` changes
        nothing.
        """
        part = _fields_of(raw)
        if _text_of(part.get("type")) != _INPUT:
            return None
        url = part.get(_IMAGE, _NULL)
        name = self._given(part)
        if not name:
            if not _is_data(url):
                return None
            name = self._name(_INPUT.encode(), url)
        read = {key: one for key, one in part.items() if key != "detail"}
        read |= {"type": msgspec.Raw(b'"image_url"'), _IMAGE: _NULL}
        return self._made(Sent(name, _INPUT, url), part, read)

    def _block(self, raw: bytes, *, inside: str | None = None) -> _Two | None:
        """Note an image of Anthropic's messages, those within results of tools, too: its engine
        drops a name, so a client's is none.
        """
        part = _fields_of(raw)
        key = _text_of(part.get("type"))
        if key == inside:
            return _replaced(raw, "content", self._block)
        if key != _BLOCK:
            return None
        source = part.get("source", _NULL)
        if not _is_source(source):
            return (raw, msgspec.json.encode(part)) if part.pop(NAME, None) else None
        sent = Sent(self._name(b"source", source), _BLOCK, source)
        read = {"type": part["type"], "source": msgspec.Raw(b'{"type":"base64"}')}
        return raw, self._made(sent, part, read)[1]

    def _made(self, sent: Sent, part: _Fields, read: _Fields) -> _Two:
        """Return a part with its name, and as it is `read`."""
        if sent.type not in KINDS or media_part({**read, "type": sent.type, NAME: sent.name}):
            self.sent[sent.name] = sent
        name = msgspec.Raw(b'"%b"' % sent.name.encode())
        return msgspec.json.encode({**part, NAME: name}), msgspec.json.encode({**read, NAME: name})

    def _given(self, part: _Fields) -> str:
        """Return the name in the place of a client's own; "" where it brings none."""
        given = bytes(part.get(NAME, _NULL))
        if given == b"null":
            return ""
        return self._name(b"given", msgspec.json.encode(msgspec.json.decode(given)))

    def _name(self, what: bytes, content: bytes | msgspec.Raw) -> str:
        digest = hashlib.blake2b(digest_size=16, person=b"kvmesh-media")
        for one in (self._salt.encode("utf-8", "surrogatepass"), what):
            digest.update(len(one).to_bytes(4, "little") + one)
        digest.update(content)
        return digest.hexdigest()


def _fields_of(raw: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a part, none for what is no object."""
    return _fields.decode(raw) if bytes(memoryview(raw)[:1]) == b"{" else {}


def _text_of(raw: msgspec.Raw | None) -> str:
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, str) else ""


class _Url(msgspec.Struct):
    url: msgspec.Raw = msgspec.Raw(b"")


class _Data(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"")


class _Source(msgspec.Struct):
    data: msgspec.Raw = _NULL
    type: str | None = None
    media_type: str = "image/jpeg"


_url: Final = msgspec.json.Decoder(_Url)
_data: Final = msgspec.json.Decoder(_Data)
_source: Final = msgspec.json.Decoder(_Source)


def _is_sent(content: msgspec.Raw, key: str) -> bool:
    """Return whether a part's content came with it."""
    try:
        if key == "input_audio":
            return bytes(memoryview(_data.decode(content).data)[:1]) == b'"'
        return _is_data(_url.decode(content).url)
    except UNREADABLE:
        return False


def _is_data(url: msgspec.Raw) -> bool:
    return bytes(memoryview(url)[:6]) == b'"data:'


def _is_source(raw: msgspec.Raw) -> bool:
    """Return whether the source of an image is its content, as vLLM takes it."""
    try:
        source = _source.decode(raw)
    except UNREADABLE:
        return False
    return source.type != "url" and bytes(memoryview(source.data)[:1]) == b'"'
