"""Agents' sessions as Weka traces, one file each, which NVIDIA's aiperf replays."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.programs.small_trace import WORDS
from kvmesh_lab.traces.sessions import SessionTrace, SessionTurn

BLOCK: Final = 16
"""Tokens of a block of the traces, as of the engines."""


def make_agents(sessions: int, turns: int, seed: int) -> list[SessionTrace]:
    """Return generated agents of up to `turns` turns, small enough for pretend engines.

    A first prompt has 2 k tokens in the middle, a turn adds some 70 tokens, one of 20 up to 2 k;
    one of 20 writes the last tenth of the context anew. Pauses are 1 s in the middle.
    """
    rng = random.Random(seed)
    found: list[SessionTrace] = []
    for number in range(sessions):
        prompt = min(8_000, int(rng.lognormvariate(7.6, 0.6)))
        made: list[SessionTurn] = []
        for turn in range(rng.randint(max(1, turns // 2), turns)):
            shared = 0
            if turn:
                shared = int(prompt * 0.9) if rng.random() < 0.05 else prompt
                grown = rng.uniform(500, 2_000) if rng.random() < 0.05 else 0.0
                prompt = shared + int(grown + rng.lognormvariate(4.2, 0.8))
            pause_s = min(8.0, rng.lognormvariate(0.0, 0.8)) if turn else 0.0
            answer = rng.randint(8, 40)
            made.append(SessionTurn(pause_s, prompt, answer, shared, 0.5, "tool"))
        found.append(SessionTrace(f"agent-{number}", tuple(made)))
    return found


def write_weka(sessions: Sequence[SessionTrace], directory: Path) -> Path:
    """Write each session to a file of `directory`; what turns share is rounded down to a block."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, session in enumerate(sessions):
        blocks: list[int] = []
        made, begins_s = 0, 0.0
        requests: list[dict[str, object]] = []
        for turn in session.turns:
            blocks = blocks[: turn.shared_tokens // BLOCK]
            wanted = -(-turn.input_tokens // BLOCK) - len(blocks)
            blocks += range(made + 1, made + wanted + 1)
            made += wanted
            begins_s += turn.pause_s
            request: dict[str, object] = {"t": round(begins_s, 3), "type": "s", "model": "m"}
            request |= {"in": turn.input_tokens, "out": turn.output_tokens}
            request |= {
                "stop": WORDS[turn.stop],
                "api_time": turn.engine_s,
                "think_time": round(turn.pause_s, 3),
            }
            requests.append({**request, "hash_ids": blocks.copy()})
            begins_s += turn.engine_s
        about = {"id": session.name, "models": ["m"], "block_size": BLOCK, "tool_tokens": 0}
        about |= {"hash_id_scope": "local", "system_tokens": 0, "requests": requests}
        (directory / f"{number:05d}.json").write_bytes(msgspec.json.encode(about))
    return directory
