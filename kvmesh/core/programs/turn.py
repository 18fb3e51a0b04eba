"""One request of a program, from its arrival to its end."""

from math import inf
from typing import Literal

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.chat import answer_json

Stop = answer_json.Stop

Client = Literal[
    "", "claude-code", "codex", "opencode", "dynamo", "aiperf", "smg", "kvmesh", "chain"
]
"""Who named the program; chain: nobody, its prompts extend each other."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request of an agent, which is a program or a part of one.

    `agent` and `program` are `session_key`s, equal for an agent without a parent; sub-agents have
    the `program` of the agent that began them. Tokens are those of the whole prompt. `final`: its
    client says that no other turn will follow. It may be held for `patience_s` seconds at most,
    whatever the governor's bound: its client waits no longer.
    """

    request_id: str
    agent: str
    program: str
    client: Client = ""
    tenant: str = ""
    priority: int = 0
    prompt_tokens: int = 0
    expected_output_tokens: int = 0
    final: bool = False
    patience_s: float = inf


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a turn ended. `served` False: refused, failed or left, and nothing is learned of it.

    `computed_tokens` are those of the prompt that were not cached. `tool` is the name of the tool
    called last, "" for none or an unknown one.
    """

    served: bool
    worker: WorkerId
    output_tokens: int = 0
    computed_tokens: int = 0
    stop: Stop = ""
    tool: str = ""


class Grant(msgspec.Struct, frozen=True):
    """A turn may be taken: at one of `workers`, None: wherever routing sends it.

    What of its prompt is computed anew counts `prefill_weight` times as much as routing would have
    it, where that evicts contexts of others, which are computed again in their turn.
    """

    workers: frozenset[WorkerId] | None = None
    prefill_weight: int = 1
