"""Messages and tools of chats, decoded and shaped once: the next turn of a conversation says all of
the turn before again, and its tools.
"""

from secrets import randbits
from typing import Final, Generic, TypeVar, cast

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import ChatBody, ChatInput, JsonObject, KnownMessage, KnownTools
from kvmesh.core.chat.inference import Inference, InferenceRequest, is_readable
from kvmesh.errors import RequestError

OBJECT_BYTES: Final = 1200
"""About how much a decoded and shaped message takes besides its JSON and its texts."""

_RAW_CHATS: Final = msgspec.json.Decoder(Inference[list[msgspec.Raw]])
_MESSAGES: Final = msgspec.json.Decoder(JsonObject)
_TOOLS: Final = msgspec.json.Decoder(list[JsonObject] | None)

V = TypeVar("V")


class _Kept(Generic[V]):
    """What was read, by a hash of it, in two generations of `half` bytes each: the `young` ones.

    The hash is seeded by chance, so that nobody can have messages take each other's place; what is
    found is compared all the same.
    """

    def __init__(self, half: int) -> None:
        self._half = half
        self.young: dict[int, V] = {}
        self._old: dict[int, V] = {}
        self._size = 0
        self.seed = randbits(64)

    def find(self, place: int, length: int) -> V | None:
        """Return what is at a place and was not used lately; it is among the young from now on."""
        found = self._old.get(place)
        if found is not None:
            self.keep(place, found, length)
        return found

    def keep(self, place: int, value: V, length: int) -> None:
        """Keep a value made of so many bytes until many others were."""
        size = 2 * length + OBJECT_BYTES
        if size > self._half // 2:
            return
        if self._size + size > self._half:
            self._old, self.young, self._size = self.young, {}, 0
        self.young[place] = value
        self._size += size


class KnownChats:
    """Reads chats whose messages were mostly read before. From one thread. About `capacity` bytes.

    What was read in one `domain` (a cache salt) makes no other quicker.
    """

    def __init__(self, capacity: int) -> None:
        self._messages = _Kept[KnownMessage](capacity // 2)
        self._tools = _Kept[KnownTools](capacity // 8)

    def read(self, body: bytes, domain: str) -> tuple[InferenceRequest, ChatInput] | None:
        """Return a chat's fields, its messages left out, and what reaches its template; None for
        any that has something wrong (`core.chat.inference.read_chat`). Raises `RequestError`.
        """
        start = domain.encode("utf-8", "surrogatepass") + b"\0" if domain else b""
        try:
            chat = _RAW_CHATS.decode(body)
            raws = cast("object", chat.messages)  # raw where there are none
            if not is_readable(chat, body) or not isinstance(raws, list):
                return None
            messages = self._read_messages(chat.messages, start)
            rest = _rest_of(chat)
            tools = self._read_tools(chat.tools, start) if chat.tools else None
        except UNREADABLE:
            return None
        known = msgspec.structs.replace(
            rest, messages=cast("list[JsonObject]", messages), tools=tools
        )
        return cast("InferenceRequest", chat), ChatInput.of(known)

    def _read_messages(self, raws: list[msgspec.Raw], start: bytes) -> list[KnownMessage]:
        kept = self._messages
        young, seed = kept.young, kept.seed
        messages: list[KnownMessage] = []
        for raw in raws:
            read = start + bytes(raw)
            place = xxh3_64_intdigest(read, seed)
            found = young.get(place)
            if found is None or found.read != read:
                found = kept.find(place, len(read))
                if found is None or found.read != read:
                    found = KnownMessage(_MESSAGES.decode(raw), read)
                    kept.keep(place, found, len(read))
                young = kept.young
            messages.append(found)
        return messages

    def _read_tools(self, raw: msgspec.Raw, start: bytes) -> KnownTools | None:
        kept, read = self._tools, start + bytes(raw)
        place = xxh3_64_intdigest(read, kept.seed)
        found = kept.young.get(place) or kept.find(place, len(read))
        if found is None or found.read != read:
            tools = _TOOLS.decode(raw)
            if not tools:
                return None
            found = KnownTools(tools, read)
            kept.keep(place, found, len(read))
        return found


_KEPT: Final = frozenset({"messages", "tools"})
_FIELDS: Final = tuple(name for name in ChatBody.__struct_fields__ if name not in _KEPT)
_NOTHING: Final = ChatBody([])


def _rest_of(chat: Inference[list[msgspec.Raw]]) -> ChatBody:
    """Return what of a chat is decoded anew each time."""
    fields: JsonObject = {
        name: msgspec.json.decode(raw) for name in _FIELDS if (raw := getattr(chat, name))
    }
    if not fields:
        return _NOTHING
    try:
        return msgspec.convert({"messages": [], **fields}, ChatBody)
    except msgspec.ValidationError as error:
        raise RequestError(f"chat body: {error}", param="messages") from error
