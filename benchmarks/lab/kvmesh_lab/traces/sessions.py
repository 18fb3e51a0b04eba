"""Traces of agents' sessions: one session a line, its turns in a row, each after a pause."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from kvmesh.bounds import MAX_TOKENS, UNREADABLE, Count, MaybeName, Seconds, Tokens, counted
from kvmesh.core.chat.answer_json import STOPS, Stop
from kvmesh.errors import ConfigError
from kvmesh_lab.traces.trace import TraceRequest

SESSION_BLOCK_SIZE: Final = 512
"""Tokens of a block of the requests made: what turns share is rounded down to it."""

SESSION_GAP_S: Final = 60.0
"""Sessions without a recorded start begin one after the other, so many seconds apart."""

_FORMAT: Final = (
    'expected {"session": name, "parent": name or null, "start_s": seconds or null, "common": '
    'tokens, "turns": [[pause_s, input tokens, output tokens, tokens shared with the turn before, '
    "engine_s, stop reason], ...]}"
)


class SessionTurn(msgspec.Struct, frozen=True):
    """One request of a session, sent `pause_s` after the turn before it has ended.

    `shared_tokens` of its prompt are the first ones of the prompt before it. `engine_s` is how long
    the recorded engine took, `stop` why the answer ended.
    """

    pause_s: float
    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    engine_s: float = 0.0
    stop: Stop = ""


class SessionTrace(msgspec.Struct, frozen=True):
    """One agent's turns. `parent` is the session that began it, "" for none; it began `start_s`
    after its parent did. The first `common_tokens` are tools and system prompt: sessions with as
    many of them have the same ones.
    """

    name: str
    turns: tuple[SessionTurn, ...]
    parent: str = ""
    start_s: float | None = None
    common_tokens: int = 0


class _Line(msgspec.Struct, frozen=True):
    session: MaybeName | int
    turns: Annotated[
        tuple[
            tuple[
                Seconds,
                Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)],
                Tokens,
                Tokens,
                Seconds,
                MaybeName | None,
            ],
            ...,
        ],
        msgspec.Meta(min_length=1),
    ]
    parent: MaybeName | int | None = None
    start_s: Seconds | None = None
    common: Count = 0


_decoder = msgspec.json.Decoder(_Line)


def holds_sessions(lines: Iterable[bytes]) -> bool:
    """Return whether a trace is one of sessions, as its first line shows."""
    first = next((line for line in lines if line.strip()), b"")
    try:
        found = msgspec.json.decode(first)
    except UNREADABLE:
        return False
    return isinstance(found, dict) and "turns" in found


def stop_of(reason: str | None) -> Stop:
    """Return what a finish or stop reason of any API means; "" for one that is not known."""
    return STOPS.get(reason or "", "")


def parse_sessions(lines: Iterable[bytes], source: str) -> list[SessionTrace]:
    """Return the sessions in the order of the file; blank lines are skipped.

    A sub-agent's line comes after its parent's. An output of 0 tokens becomes 1.
    Raises `ConfigError` naming `source`, the line and what is wrong with it.
    """
    found: dict[str, SessionTrace] = {}
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        place = f"{source}:{number}"
        try:
            line = _decoder.decode(raw)
        except UNREADABLE as error:
            raise ConfigError(f"{place}: {error}; {_FORMAT}") from error
        session = _session(line)
        if session.name in found:
            raise ConfigError(f"{place}: session {session.name!r} stands here a second time")
        if session.parent and session.parent not in found:
            raise ConfigError(
                f"{place}: parent {session.parent!r} is no session of the lines above"
            )
        _check_turns(session, place)
        found[session.name] = session
    if not found:
        raise ConfigError(f"{source}: no session in it; {_FORMAT}")
    return list(found.values())


def _session(line: _Line) -> SessionTrace:
    turns = tuple(
        SessionTurn(pause, prompt, max(1, output), shared, engine, stop_of(stop))
        for pause, prompt, output, shared, engine, stop in line.turns
    )
    return SessionTrace(
        name=str(line.session),
        turns=turns,
        parent="" if line.parent is None else str(line.parent),
        start_s=line.start_s,
        common_tokens=line.common,
    )


def _check_turns(session: SessionTrace, place: str) -> None:
    """Refuse turns that share more than there is. Raises `ConfigError`."""
    before = session.turns[0].shared_tokens
    for number, turn in enumerate(session.turns, start=1):
        if turn.shared_tokens > min(before, turn.input_tokens):
            raise ConfigError(
                f"{place}: turn {number} shares {turn.shared_tokens} tokens with the turn before, "
                f"but has {turn.input_tokens} and that one {before}"
            )
        before = turn.input_tokens


def choose_programs(
    sessions: Sequence[SessionTrace], skip: int = 0, programs: int | None = None
) -> list[SessionTrace]:
    """Return so many programs, each a session without parent and its sub-agents, after the first
    `skip`; beyond the end of the trace it begins again, with fresh sessions named `NAME#2`, ….

    Fresh sessions share with the first only what sessions have in common. None: all that are left.
    Raises `ConfigError` when nothing is left.
    """
    families: dict[str, list[SessionTrace]] = {}
    roots: dict[str, str] = {}
    for one in sessions:
        root = roots[one.name] = roots[one.parent] if one.parent else one.name
        families.setdefault(root, []).append(one)
    left = list(families.values())[skip:]
    if not left:
        raise ConfigError(
            f"the trace has {counted(len(families), 'program')}, none after --skip {skip}"
        )
    chosen: list[SessionTrace] = []
    for number in range(len(left) if programs is None else programs):
        again, place = divmod(number, len(left))
        chosen += [_again(one, again + 1) for one in left[place]]
    return chosen


def _again(session: SessionTrace, number: int) -> SessionTrace:
    if number == 1:
        return session
    parent = f"{session.parent}#{number}" if session.parent else ""
    return msgspec.structs.replace(session, name=f"{session.name}#{number}", parent=parent)


def requests_of(
    sessions: Sequence[SessionTrace],
    block_size: int = SESSION_BLOCK_SIZE,
    *,
    time_scale: float = 1.0,
) -> list[TraceRequest]:
    """Return the turns as requests, session after session, in closed loop.

    A turn comes its pause after the end of the one before. The first turn of a sub-agent comes
    after the end of its parent's turn that it was recorded during or behind, by as much as it was
    recorded later. Its parent does not wait for it but for its own pauses, as recorded. Blocks hold
    `block_size` tokens. What shares blocks: the turns of a session as recorded, the first turns of
    sessions with equally many common tokens. `time_scale` multiplies pauses and starts; later
    turns have the times they were recorded at. Parents come before their sub-agents.
    """
    made: list[TraceRequest] = []
    blocks = _Blocks(block_size)
    firsts: dict[str, int] = {}
    by_name = {one.name: one for one in sessions}
    roots = 0
    for session in sessions:
        parent = by_name.get(session.parent)
        after, delay_s = None, 0.0
        if parent is None:
            program = session.name
            start_s = SESSION_GAP_S * roots if session.start_s is None else session.start_s
            start_ms = start_s * time_scale * 1000.0
            roots += 1
        else:
            place, delay_s = _begun_after(parent, session.start_s or 0.0)
            after = firsts[parent.name] + place
            program = made[after].program
            begun_ms = made[firsts[parent.name]].timestamp_ms
            start_ms = begun_ms + (session.start_s or 0.0) * time_scale * 1000.0
        firsts[session.name] = len(made)
        recorded_s = 0.0
        for number, (turn, ids) in enumerate(zip(session.turns, blocks.of(session), strict=True)):
            waits = number > 0 or after is not None
            pause_s = turn.pause_s if number else delay_s
            recorded_s += turn.pause_s if number else 0.0
            request = TraceRequest(
                index=len(made),
                timestamp_ms=start_ms + recorded_s * time_scale * 1000.0,
                input_tokens=turn.input_tokens,
                output_tokens=turn.output_tokens,
                block_ids=ids,
                session=session.name,
                delay_ms=pause_s * time_scale * 1000.0 if waits else None,
                parent=session.parent,
                program=program,
                stop=turn.stop,
                after=None if number else after,
            )
            made.append(request)
            recorded_s += turn.engine_s
    return made


def _begun_after(parent: SessionTrace, start_s: float) -> tuple[int, float]:
    """Return the turn of the parent that was under way or last when a sub-agent began, and how
    long after its end that was, s.
    """
    found, delay_s, now = 0, 0.0, 0.0
    for number, turn in enumerate(parent.turns):
        now += turn.pause_s if number else 0.0
        if now > start_s:
            break
        now += turn.engine_s
        found, delay_s = number, max(0.0, start_s - now)
    return found, delay_s


class _Blocks:
    """Gives blocks their ids: equal ones what is shared, all others new ones."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._next = 0
        self._common: dict[int, tuple[int, ...]] = {}

    def of(self, session: SessionTrace) -> Iterable[tuple[int, ...]]:
        """Yield the ids of each turn's full blocks."""
        before = self._shared(session.common_tokens)
        for number, turn in enumerate(session.turns):
            shared = turn.shared_tokens if number else session.common_tokens
            kept = before[: min(shared, turn.input_tokens) // self._size]
            new = turn.input_tokens // self._size - len(kept)
            before = (*kept, *range(self._next, self._next + new))
            self._next += new
            yield before

    def _shared(self, tokens: int) -> tuple[int, ...]:
        if tokens not in self._common:
            count = tokens // self._size
            self._common[tokens] = tuple(range(self._next, self._next + count))
            self._next += count
        return self._common[tokens]
