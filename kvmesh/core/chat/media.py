"""Images, sounds and videos of chats: the names engines keep them under, put into bodies.

An engine that takes a name (`uuid`) beside a media part keys its blocks by it; without one it
keys them by a hash of its own, which only it can make.
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


def named_body(body: bytes, salt: str) -> bytes | None:
    """Return a chat's body with a name in each media part; None where there is none to name.

    Equal content has one name at every router and after every start: engines would compute it again
    under another. Content that is elsewhere (a URL) has none: it may change. A client's own name is
    replaced, too: it is none of content, nor of another `salt`, so that no part can have the name
    of another's content. All other values stay as they were sent. O(bytes), about 1 ms a megabyte;
    may run in a thread.
    """
    try:
        message = partial(_replaced, key="content", made=partial(_part, salt))
        return _replaced(body, "messages", message)
    except UNREADABLE:
        return None


def _replaced(raw: bytes, key: str, made: Callable[[bytes], bytes | None]) -> bytes | None:
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
    kept = zip(items, found, strict=True)
    named = [old if new is None else msgspec.Raw(new) for old, new in kept]
    fields[key] = msgspec.Raw(msgspec.json.encode(named))
    return msgspec.json.encode(fields)


def _part(salt: str, raw: bytes) -> bytes | None:
    if bytes(memoryview(raw)[:1]) != b"{":
        return None
    part = _fields.decode(raw)
    given = bytes(part.get(NAME, b"null"))
    if given != b"null":
        name = _name(salt, b"given", msgspec.json.encode(msgspec.json.decode(given)))
    else:
        key = msgspec.json.decode(part.get("type", b"null"))
        content = part.get(key) if isinstance(key, str) and key in KINDS else None
        if content is None or not _is_sent(content, key):
            return None
        name = _name(salt, key.encode(), content)
    part[NAME] = msgspec.Raw(b'"%b"' % name.encode())
    return msgspec.json.encode(part)


def _name(salt: str, what: bytes, content: bytes | msgspec.Raw) -> str:
    digest = hashlib.blake2b(digest_size=16, person=b"kvmesh-media")
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
