"""Token ids of chats that are nothing but roles and texts, without a run of their template.

What a template prints around texts is learned once for each sequence of roles; the ids of that are
kept, and only the texts are tokenised. Chats that this does not hold for are the template's.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh._native import TextPacker
from kvmesh.core.chat.chat import ChatInput, JsonObject, KnownTools
from kvmesh.core.chat.opaque_text import Piece, Slot
from kvmesh.core.chat.skeleton import Skeleton
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import ChatShape
from kvmesh.core.prompts.segment_cache import ENTRY_OVERHEAD, SegmentCache
from kvmesh.core.prompts.text_packer import MOST_MESSAGES, Opening, filled
from kvmesh.errors import RequestError

ROLES: Final = frozenset(("system", "developer", "user", "assistant", "tool"))
MOST_MARKS: Final = 16
"""Strings that a text with a hint in it is searched for: 16 take some 0.5 us in 200 characters."""

USUAL: Final = (("user",), ("system", "user"), ("system", "user", "assistant", "user"))
"""What is tried of a template before the first chat."""

_PROBES: Final = ("Probe {} \u00fc\u4f60 x", " \n\t Probe {} \u00e9\U0001f642.  \n\n")
_KEY: Final = "\ue000text {} of a chat\ue001"

_USUAL_SHAPE: Final = (b"", True)

Shape = tuple[bytes, bool, tuple[str, ...]]
"""What decides the way of a template: packed tools and the like, generation prompt, roles."""


class Rest(msgspec.Struct, frozen=True):
    """What of a chat besides its messages may reach the template."""

    tools: list[JsonObject] | None = None
    documents: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject = {}
    tool_choice: object = None
    reasoning_effort: str | float | None = None


NOTHING: Final = Rest()


class _Plan:
    """How the ids of a chat are put together: `parts`, one of them empty for each of `openings`.

    A text without any of `hints`, or without any of `marks`, is sure to keep the conditions. No
    `openings`: the text is filled in and tokenised as any other.
    """

    def __init__(self, skeleton: Skeleton, segments: SegmentCache, marks: Sequence[str]) -> None:
        self.skeleton = skeleton
        marked = [*(mark for _, mark in skeleton.absent), *marks, *segments.atomic]
        self.hints, self.marks = _hints(marked), _beginnings(marked)
        self.parts: tuple[bytes, ...] = ()
        self.openings: tuple[Opening, ...] | None = None
        cut = segments.cut(skeleton.pieces)
        if cut is None or any(_slots(segment) > 1 for segment in cut):
            return
        openings = [_opening(place, segment) for place, segment in enumerate(cut)]
        self.openings = tuple(one for one in openings if one is not None)
        self.parts = tuple(
            b"" if opening else segments.encode(str(segment[0]))
            for opening, segment in zip(openings, cut, strict=True)
        )

    def doubts(self, texts: Sequence[str]) -> bool | None:
        """Return whether the texts must be looked at more closely; None: one is blank."""
        doubts = self.openings is None
        for text in texts:
            if not text or text.isspace():
                return None
            for hint in self.hints:
                if hint in text:
                    doubts = True
        return doubts

    def size(self) -> int:
        """Return about how many bytes it takes."""
        pieces = sum(len(piece) for piece in self.skeleton.pieces if isinstance(piece, str))
        openings = ENTRY_OVERHEAD * len(self.openings or ())
        return 2 * pieces + openings + sum(map(len, self.parts)) + ENTRY_OVERHEAD * len(self.parts)


class PlainChats:
    """The chats of one template and one engine's way to shape them. From any thread.

    `marks`: strings the shaping looks for in texts (`Engine.chat_marks`). `capacity` bounds what is
    kept in bytes: the least recently used half goes. `chats` counts those packed; `reason` says
    of the first sequence of roles that must be rendered why, "" where there was none.
    """

    def __init__(
        self,
        template: ChatTemplate,
        shape: ChatShape,
        segments: SegmentCache,
        marks: Sequence[str],
        capacity: int,
    ) -> None:
        self._template = template
        self._shape = shape
        self._segments = segments
        self._marks = tuple(marks)
        atomic = sorted(segments.atomic)
        self._atomic = re.compile("|".join(map(re.escape, atomic)) if atomic else r"(?!)")
        self._half = capacity // 2
        self._size = 0
        # Usual chats of known forms: they come to `pack` only if somebody has to look closer.
        self.packer = TextPacker(segments.cache, segments.encode_batch)
        self._plans: dict[Shape, _Plan | None] = {}
        self._old: dict[Shape, _Plan | None] = {}
        self.reason = ""
        self.chats = 0
        for roles in USUAL:
            self._learn((b"", True, roles), NOTHING)

    def pack(
        self, roles: tuple[str, ...], texts: Sequence[str], generate: bool, rest: Rest, domain: str
    ) -> bytes | None:
        """Return the packed ids of a chat of these messages; None where it must be rendered.

        `generate`: the chat ends with a generation prompt. Raises what tokenising raises.
        """
        extra = b"" if rest is NOTHING else packed_rest(rest)
        if extra is None:
            return None
        shape = (extra, generate, roles)
        plan = self._plans.get(shape)
        if plan is None or plan.skeleton.clock:
            plan = self._find(shape, rest)
        doubts = None if plan is None else plan.doubts(texts)
        if plan is None or doubts is None:
            return None
        if doubts:
            if not self._keeps(plan, texts):
                return None
            if plan.openings is None or any(map(self._atomic.search, texts)):
                self.chats += 1
                return self._segments.encode(plan.skeleton.fill(texts), domain)
        openings, parts = plan.openings or (), list(plan.parts)
        found = self._segments.lookup([filled(one, texts) for one in openings], domain)
        for opening, ids in zip(openings, found, strict=True):
            parts[opening[0]] = ids
        self.chats += 1
        return b"".join(parts)

    def _keeps(self, plan: _Plan, texts: Sequence[str]) -> bool:
        """Return whether the texts are such as the plan was made for."""
        shaped = any(mark in text for mark in self._marks for text in texts)
        return not shaped and plan.skeleton.holds_for(texts)

    def _is_now(self, plan: _Plan) -> bool:
        now = self._template.now
        return all(now(pattern) == printed for pattern, printed in plan.skeleton.clock)

    def _find(self, shape: Shape, rest: Rest) -> _Plan | None:
        """Return what is known of a shape, learned if need be, and anew on another day."""
        known = self._plans if shape in self._plans else self._old
        if shape not in known:
            return self._learn(shape, rest)
        plan = known[shape]
        if plan is not None and not self._is_now(plan):
            return self._learn(shape, rest)
        if known is self._old:
            self._keep(shape, plan)
        return plan

    def _learn(self, shape: Shape, rest: Rest) -> _Plan | None:
        """Return the plan for a shape, None when there can be none."""
        _, _, roles = shape
        if len(roles) > MOST_MESSAGES or not ROLES.issuperset(roles):
            return None
        skeleton = self._skeleton(shape, rest)
        if skeleton is None:
            return None
        plan: _Plan | None = None
        if isinstance(skeleton, Skeleton):
            plan = _Plan(skeleton, self._segments, self._marks)
        elif skeleton and not self.reason:
            self.reason = f"{', '.join(roles)}: {skeleton}"
        self._keep(shape, plan)
        return plan

    def _skeleton(self, shape: Shape, rest: Rest) -> Skeleton | str | None:
        """Return what the template prints around texts if it is so for probes, else why not.

        "": the template refuses such a chat. None: another thread is at it.
        """
        _, generate, roles = shape
        try:
            keys = [_KEY.format(index) for index in range(len(roles))]
            call = self._shape(_chat(roles, keys, generate, rest), self._template)
            if call.suffix or call.cut != "none":
                return "the engine continues the last message"
            skeleton = self._template.outline(call, keys)
            if not isinstance(skeleton, Skeleton):
                return skeleton
            for probe in _PROBES:
                texts = [probe.format(index) for index in range(len(roles))]
                call = self._shape(_chat(roles, texts, generate, rest), self._template)
                text = self._template.render(call)
                if not skeleton.holds_for(texts) or skeleton.fill(texts) != text:
                    return "a probe was rendered otherwise than expected"
        except RequestError:
            return ""
        return skeleton

    def _keep(self, shape: Shape, plan: _Plan | None) -> None:
        extra, _, roles = shape
        size = ENTRY_OVERHEAD + len(extra) + 8 * len(roles) + (plan.size() if plan else 0)
        if size > self._half:
            return
        if self._size + size > self._half:
            self._old, self._plans, self._size = self._plans, {}, 0
            self.packer.forget()
        self._plans[shape] = plan
        self._size += size
        if plan is not None and plan.openings is not None and shape[:2] == _USUAL_SHAPE:
            self.packer.teach(roles, plan.hints, plan.marks, plan.parts, plan.openings)


def _chat(roles: Sequence[str], texts: Sequence[str], generate: bool, rest: Rest) -> ChatInput:
    messages: list[JsonObject] = [
        {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
    ]
    return ChatInput(
        messages,
        tools=rest.tools,
        documents=rest.documents,
        chat_template_kwargs=rest.chat_template_kwargs,
        tool_choice=rest.tool_choice,
        reasoning_effort=rest.reasoning_effort,
        add_generation_prompt=generate,
    )


def packed_rest(rest: Rest) -> bytes | None:
    """Return bytes that differ for different rests; None for one that msgpack cannot hold."""
    try:
        if not isinstance(tools := rest.tools, KnownTools):
            return msgspec.msgpack.encode(rest)
        tools.packed = tools.packed or msgspec.msgpack.encode(tools)
        return tools.packed + msgspec.msgpack.encode(msgspec.structs.replace(rest, tools=None))
    except (OverflowError, UnicodeEncodeError, TypeError):
        return None


def _hints(marks: Sequence[str]) -> tuple[str, ...]:
    """Return few short strings, one of them in each mark."""
    firsts = {mark if mark[0].isalnum() or mark[0].isspace() else mark[0] for mark in marks}
    return tuple(sorted(firsts))


def _beginnings(marks: Sequence[str]) -> tuple[str, ...]:
    """Return beginnings of the marks, as long as there are few of them."""
    found = set(marks)
    for width in range(max(map(len, marks), default=0), 0, -1):
        found = {mark[:width] for mark in marks}
        if len(found) <= MOST_MARKS:
            break
    return tuple(sorted(found))


def _slots(segment: Sequence[Piece]) -> int:
    return sum(isinstance(piece, Slot) for piece in segment)


def _opening(place: int, segment: Sequence[Piece]) -> Opening | None:
    """Return a segment with one text in it; None for a literal."""
    slot = next((piece for piece in segment if isinstance(piece, Slot)), None)
    if slot is None:
        return None
    head, tail = ("", *segment)[segment.index(slot)], (*segment, "")[segment.index(slot) + 1]
    return place, str(head), slot.index, slot.strips, str(tail)
