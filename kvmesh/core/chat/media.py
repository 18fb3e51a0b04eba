"""Images, sounds and videos of chats: the names engines keep them under, put into bodies.

An engine that takes a name (`uuid`) beside a media part keys its blocks by it; without one it
keys them by a hash of its own, which only it can make.
"""

import hashlib
from collections.abc import Mapping
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

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list: Final = msgspec.json.Decoder(list[msgspec.Raw])


class MediaPart(msgspec.Struct, frozen=True):
    """A part whose content is in the request: `kind` of it, and the `name` it is kept under."""

    kind: str
    name: str


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


def may_hold_media(body: bytes) -> bool:
    """Return whether a body may have a part of media, or a name of one: not whether it has."""
    return any(one in body for one in (b"_url", b"input_audio", b"uuid", b"\\u00"))


class MediaNames:
    """Names media by their content, so that equal content has one name at every router with this
    `secret`, and nobody without it can make another's.
    """

    def __init__(self, secret: bytes = b"") -> None:
        self._key = hashlib.blake2b(secret).digest()

    def named(self, body: bytes, salt: str) -> bytes | None:
        """Return a chat's body with a name in each media part; None where there is none to name.

        Content that is elsewhere (a URL) has none: it may change. A client's own name is replaced,
        too, so that no client can have its content taken for another's of another `salt`. All
        other values stay as they were sent. O(bytes), about 1 ms a megabyte; may run in a thread.
        """
        try:
            fields = _fields.decode(body)
            messages = _list.decode(fields.get("messages", b""))
            made = [self._message(one, salt) for one in messages]
        except UNREADABLE:
            return None
        if not any(made):
            return None
        kept = zip(messages, made, strict=True)
        named = [old if new is None else msgspec.Raw(new) for old, new in kept]
        fields["messages"] = msgspec.Raw(msgspec.json.encode(named))
        return msgspec.json.encode(fields)

    def _message(self, raw: msgspec.Raw, salt: str) -> bytes | None:
        message = _fields.decode(raw)
        content = message.get("content", msgspec.Raw(b""))
        if bytes(memoryview(content)[:1]) != b"[":
            return None
        parts = _list.decode(content)
        made = [self._part(one, salt) for one in parts]
        if not any(made):
            return None
        kept = zip(parts, made, strict=True)
        named = [old if new is None else msgspec.Raw(new) for old, new in kept]
        message["content"] = msgspec.Raw(msgspec.json.encode(named))
        return msgspec.json.encode(message)

    def _part(self, raw: msgspec.Raw, salt: str) -> bytes | None:
        if bytes(memoryview(raw)[:1]) != b"{":
            return None
        part = _fields.decode(raw)
        given = bytes(part.get(NAME, b"null"))
        if given != b"null":
            name = self._name(salt, b"given", msgspec.json.encode(msgspec.json.decode(given)))
        else:
            key = msgspec.json.decode(part.get("type", b"null"))
            content = part.get(key) if isinstance(key, str) and key in KINDS else None
            if content is None or not _is_sent(content, key):
                return None
            name = self._name(salt, key.encode(), content)
        part[NAME] = msgspec.Raw(b'"%b"' % name.encode())
        return msgspec.json.encode(part)

    def _name(self, salt: str, what: bytes, content: bytes | msgspec.Raw) -> str:
        digest = hashlib.blake2b(digest_size=16, key=self._key, person=b"kvmesh-media")
        for one in (salt.encode("utf-8", "surrogatepass"), what):
            digest.update(len(one).to_bytes(4, "little") + one)
        digest.update(content)
        return digest.hexdigest()


class _Url(msgspec.Struct):
    url: msgspec.Raw = msgspec.Raw(b"")


class _Data(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"")


_url: Final = msgspec.json.Decoder(_Url)
_data: Final = msgspec.json.Decoder(_Data)


def _is_sent(content: msgspec.Raw, key: str) -> bool:
    """Return whether a part's content came with it."""
    try:
        if key == "input_audio":
            return bytes(memoryview(_data.decode(content).data)[:1]) == b'"'
        return bytes(memoryview(_url.decode(content).url)[:6]) == b'"data:'
    except UNREADABLE:
        return False
