"""Images, sounds and videos at the pretend vLLM: what stands for them, and their names in events.

How many tokens a model makes of one is made up: it depends on the content alone.
Source: vllm/renderers/chat_utils.py, vllm/multimodal/{hasher,processing/inputs}.py (0.32).
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, cast

import msgspec

from kvmesh.app.prompts.tokenizer import Tokenizer
from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.media import KINDS, NAME, Sent
from kvmesh.core.prompts.media_tokens import Span
from kvmesh.errors import RequestError

LEAST_TOKENS: Final = 48
_SPREAD: Final = 32


class Medium(msgspec.Struct, frozen=True):
    """One image, sound or video: what it is, its name in events, how many tokens stand for it."""

    kind: str
    name: str
    tokens: int


class Noted:
    """The `media` of one chat, noted as its parts are kept; none where the model does not see any.

    `sent` are those whose content is not in the chat.
    """

    def __init__(self, *, sees: bool, sent: Iterable[Sent] = ()) -> None:
        self.media: list[Medium] = []
        self._sees = sees
        self._sent = {one.name: one for one in sent}

    def keep(self, part: JsonObject, message: JsonObject) -> JsonObject | None:
        """Return what a template is shown of a part."""
        key, given = str(part.get("type")), part.get(NAME)
        key = "image_url" if key == "input_image" else key
        kind = KINDS.get(key)
        if not self._sees or kind is None or message.get("role") == "tool":
            return None
        sent = self._sent.get(given) if isinstance(given, str) else None
        content = part.get(key)
        if content is None and not given:
            return None
        if sent is not None:
            content = cast("JsonObject", msgspec.json.decode(sent.part())).get(key)
        digest = hashlib.sha256(f"{kind}:{_data_of(content)}".encode("utf-8", "surrogatepass"))
        name = given if isinstance(given, str) and sent is None else digest.hexdigest()
        tokens = LEAST_TOKENS + digest.digest()[0] % _SPREAD
        self.media.append(Medium(kind, name, tokens))
        return {"type": kind}


def _data_of(content: object) -> str:
    """Return the content as it was sent, or where it is."""
    if isinstance(content, dict):
        fields = cast("JsonObject", content)
        content = fields.get("data", fields.get("url"))
    head, comma, data = str(content).partition(",")
    return data if comma and head.startswith("data:") else str(content)


class Expander:
    """Puts as many tokens as a model would in the place of media that a template printed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._marks: dict[str, int] = {}

    def expand(
        self, ids: "array[int]", media: Sequence[Medium]
    ) -> "tuple[array[int], tuple[Span, ...]]":
        """Return a chat's ids with all of `media` in them, and where. Raises `RequestError`."""
        made, spans, place = array("I"), list[Span](), 0
        for one in media:
            mark = self._mark(one.kind)
            try:
                found = ids.index(mark, place)
            except ValueError:
                raise RequestError(f"the chat template printed nothing for {one.kind}") from None
            made += ids[place:found]
            spans.append(Span(one.name, len(made), one.tokens))
            made.extend([mark] * one.tokens)
            place = found + 1
        return made + ids[place:], tuple(spans)

    def _mark(self, kind: str) -> int:
        """Return the token that a template prints for that kind, -1 where it prints none."""
        if kind not in self._marks:
            with_one, without = (
                self._tokenizer.encode_chat(
                    ChatInput([{"role": "user", "content": parts}], add_generation_prompt=False)
                )
                for parts in ([{"type": kind}], [])
            )
            pairs = zip(with_one, without, strict=False)
            self._marks[kind] = next((one for one, other in pairs if one != other), -1)
        return self._marks[kind]


def rendered(ids: Sequence[int], media: Sequence[Medium], spans: Sequence[Span]) -> JsonObject:
    """Return the answer of `/v1/chat/completions/render`, without tensors."""
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[dict[str, int]]] = {}
    for one, span in zip(media, spans, strict=True):
        hashes.setdefault(one.kind, []).append(one.name)
        place = {"offset": span.start, "length": span.length}
        places.setdefault(one.kind, []).append(place)
    features = {"mm_hashes": hashes, "mm_placeholders": places} if media else None
    return {"token_ids": list(ids), "features": features}
