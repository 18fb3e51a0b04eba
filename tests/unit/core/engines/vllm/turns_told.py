"""What vLLM made of other APIs' bodies by its own code (tests/engines/reuse/turns.py)."""

import json
from pathlib import Path
from typing import Any

import msgspec

from kvmesh.core.chat.chat import ChatInput, keep_none
from kvmesh.core.chat.inference import decode_request
from kvmesh.core.chat.template_call import TemplateTraits
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.engines.vllm.chat import refuses_late_system, vllm_call

TOLD = json.loads(
    (Path(__file__).parents[4] / "fixtures/engines/vllm_0.32.0_turns.json").read_text("utf-8")
)
TURNS = engine_of("vllm").turns
USER = {"role": "user", "content": "hi"}


class Traits(TemplateTraits):
    """A template of string contents that takes late system messages, or not."""

    knows_developer = True

    def __init__(self, *, late: bool) -> None:
        self._late = late

    def content_format(self, detect: Any) -> Any:
        del detect
        return "string"

    def wants_system_first(self, probe: Any) -> bool:
        assert probe is refuses_late_system
        return not self._late


def normal(value: Any) -> Any:
    """Return what a template can tell apart: media are one, generated names another."""
    if isinstance(value, list):
        return [normal(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "image_url":
        return {"type": "image_url"}
    return {key: normal(one) for key, one in value.items()}


def made(case: dict[str, Any], kind: str) -> ChatInput:
    return TURNS(decode_request(json.dumps(case["body"]).encode()), kind, keep_none)


def as_told(tools: Any) -> Any:
    """Return tools as vLLM shows them to a template."""
    shown = vllm_call(
        msgspec.structs.replace(made({"body": {"messages": [USER]}}, "messages"), tools=tools),
        Traits(late=True),
    )
    return shown.tools
