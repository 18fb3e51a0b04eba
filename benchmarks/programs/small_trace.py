"""A trace of real agents' sessions, made small enough for one machine without changing its shape.

Prompts, answers and caches are divided by `TOKENS`, times of engines per token are multiplied by
it: each turn takes as long, and fills the same share of a cache, as the recorded one would.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from kvmesh_lab.mocker.model.timing import PROFILES, TimingProfile
from kvmesh_lab.traces.sessions import SessionTrace, parse_sessions

TOKENS: Final = 8
"""Recorded tokens to one that is sent: a prompt of 104,000 tokens is one of 13 KB."""

BLOCK: Final = 64
"""Tokens of a block of prompts; 512 recorded ones."""

WORDS: Final = {"tool": "tool_use", "end": "end_turn", "length": "max_tokens", "": ""}


def choose(
    trace: Path, programs: int, turns: int, longest_s: float, most_tokens: int
) -> list[SessionTrace]:
    """Return the first so many sessions of at least `turns` turns that began no earlier session's,
    cut to those, whose recorded pauses sum up to `longest_s` at most and whose contexts have
    `most_tokens` at most.

    A run would else last as long as the one agent whose user went to lunch, and an engine refuses
    what its cache cannot hold.
    """
    data = trace.read_bytes()
    lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).splitlines()
    chosen: list[SessionTrace] = []
    for one in parse_sessions(lines, str(trace)):
        first = one.turns[:turns]
        if one.parent or len(first) < turns:
            continue
        most = max(turn.input_tokens + turn.output_tokens for turn in first)
        if sum(turn.pause_s for turn in first[1:]) <= longest_s and most <= most_tokens:
            chosen.append(msgspec.structs.replace(one, turns=first, start_s=0.0))
        if len(chosen) == programs:
            break
    return chosen


def write_small(sessions: Sequence[SessionTrace], path: Path) -> Path:
    """Write sessions with their tokens divided, in the format they were read from."""
    lines: list[bytes] = []
    for one in sessions:
        turns: list[tuple[float, int, int, int, float, str]] = []
        before = 0
        for turn in one.turns:
            prompt = max(1, turn.input_tokens // TOKENS)
            shared = min(turn.shared_tokens // TOKENS, prompt, before or prompt)
            answer = max(1, round(turn.output_tokens / TOKENS))
            turns.append((turn.pause_s, prompt, answer, shared, turn.engine_s, WORDS[turn.stop]))
            before = prompt
        line = {
            "session": one.name,
            "start_s": one.start_s,
            "common": one.common_tokens // TOKENS,
            "turns": turns,
        }
        lines.append(msgspec.json.encode(line))
    path.write_bytes(b"\n".join(lines))
    return path


def small_profile(name: str) -> str:
    """Return a named timing profile, for engines whose every token stands for `TOKENS`, as the
    mocker takes it. What a request or a step costs stays, but a step decodes `TOKENS` tokens.
    """
    full = PROFILES[name]
    changed = TimingProfile(
        prefill_base=full.prefill_base,
        prefill_per_token=full.prefill_per_token * TOKENS,
        prefill_per_square=full.prefill_per_square * TOKENS**2,
        prefill_per_attention=full.prefill_per_attention * TOKENS**2,
        decode_base=full.decode_base * TOKENS,
        decode_per_request=full.decode_per_request * TOKENS,
        decode_per_context=full.decode_per_context * TOKENS**2,
        decode_per_active=full.decode_per_active * TOKENS,
        decode_per_active_square=full.decode_per_active_square * TOKENS,
        mixed_saving=full.mixed_saving,
    )
    values = (
        f"{field}={getattr(changed, field):.6g}"
        for field in changed.__struct_fields__
        if getattr(changed, field) != getattr(full, field)
    )
    return ",".join((name, *values))
