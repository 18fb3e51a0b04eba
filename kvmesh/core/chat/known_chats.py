"""Messages and tools of chats, decoded and shaped once: the next turn of a conversation says all of
the turn before again, and its tools.
"""

from secrets import randbits
from typing import Final, Generic, TypeVar, cast

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh._native import Scanned
from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import ChatBody, ChatInput, JsonObject, KnownMessage, KnownTools
from kvmesh.core.chat.inference import InferenceRequest, decode_request
from kvmesh.errors import RequestError

OBJECT_BYTES: Final = 1200
"""About how much a decoded and shaped message takes besides its JSON, its texts and its ids."""

_MESSAGES: Final = msgspec.json.Decoder(JsonObject)
_TOOLS: Final = msgspec.json.Decoder(list[JsonObject] | None)

V = TypeVar("V")


class _Kept(Generic[V]):
    """What was read, beside its bytes, by a hash of these, in two generations of `half` bytes each:
    the `young` ones.

    The hash is seeded by chance, so that nobody can have messages take each other's place; what is
    found is compared all the same.
    """

    def __init__(self, half: int) -> None:
        self._half = half
        self.young: dict[int, tuple[bytes, V]] = {}
        self._old: dict[int, tuple[bytes, V]] = {}
        self._size = 0
        self.seed = randbits(64)

    def find(self, place: int, read: bytes) -> V | None:
        """Return what was made of these bytes; it is among the young from now on."""
        for kept in (self.young, self._old):
            found = kept.get(place)
            if found is not None and found[0] == read:
                if kept is self._old:
                    self.keep(place, *found)
                return found[1]
        return None

    def keep(self, place: int, read: bytes, value: V) -> None:
        """Keep what was made of these bytes until many others were."""
        size = 3 * len(read) + OBJECT_BYTES
        if size > self._half // 2:
            return
        if self._size + size > self._half:
            self._old, self.young, self._size = self.young, {}, 0
        self.young[place] = read, value
        self._size += size


class KnownChats:
    """Reads chats whose messages were mostly read before. From one thread. About `capacity` bytes.

    What was read in one `domain` (a cache salt) makes no other quicker.
    """

    def __init__(self, capacity: int) -> None:
        self._messages = _Kept[KnownMessage](capacity // 2)
        self._tools = _Kept[KnownTools](capacity // 8)

    def read(self, scanned: Scanned, domain: str) -> tuple[InferenceRequest, ChatInput] | None:
        """Return a chat's fields, its messages left out, and what reaches its template; None for
        any that has something wrong (`core.chat.inference.read_chat`). Raises `RequestError`.
        """
        start = domain.encode("utf-8", "surrogatepass") + b"\0" if domain else b""
        try:
            chat = decode_request(scanned.rest)
            messages = self._read_messages(scanned, start)
            rest = _rest_of(chat)
            tools = self._read_tools(chat.tools, start) if chat.tools else None
        except UNREADABLE:
            return None
        known = msgspec.structs.replace(
            rest, messages=cast("list[JsonObject]", messages), tools=tools
        )
        return chat, ChatInput.of(known)

    def _read_messages(self, scanned: Scanned, start: bytes) -> list[KnownMessage]:
        kept = self._messages
        seed = xxh3_64_intdigest(start, kept.seed) if start else kept.seed
        found, others = scanned.find_messages(kept.young, seed, start)
        for index, place, begin, end in others:
            raw = scanned.body[begin:end]
            read = start + raw
            one = kept.find(place, read)
            if one is None:
                one = KnownMessage(_MESSAGES.decode(raw), len(raw))
                kept.keep(place, read, one)
            found[index] = one
        return cast("list[KnownMessage]", found)

    def _read_tools(self, raw: msgspec.Raw, start: bytes) -> KnownTools | None:
        kept, read = self._tools, start + bytes(raw)
        place = xxh3_64_intdigest(read, kept.seed)
        found = kept.find(place, read)
        if found is None:
            tools = _TOOLS.decode(raw)
            if not tools:
                return None
            found = KnownTools(tools)
            kept.keep(place, read, found)
        return found


_KEPT: Final = frozenset({"messages", "tools"})
_FIELDS: Final = tuple(name for name in ChatBody.__struct_fields__ if name not in _KEPT)
_NOTHING: Final = ChatBody([])


def _rest_of(chat: InferenceRequest) -> ChatBody:
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
