from typing import Any

import pytest

from kvmesh.core.engines.vllm.anthropic import BILLING_HEADER
from kvmesh.core.engines.vllm.chat import vllm_call
from kvmesh.errors import RequestError
from tests.unit.core.engines.vllm.turns_told import TOLD, USER, Traits, as_told, made, normal


@pytest.mark.parametrize("case", TOLD["messages"])
def test_messages_are_the_chat_that_vllm_makes_of_them(case: dict[str, Any]) -> None:
    chat = made(case, "messages")

    whole = not chat.truncated
    assert normal(chat.messages) == normal(case["messages"]) or not whole
    assert as_told(chat.tools) == case["tools"]
    assert (chat.reasoning_effort, chat.chat_template_kwargs or None) == (
        case["reasoning_effort"],
        case["chat_template_kwargs"] or None,
    )


@pytest.mark.parametrize(
    "case", [one for one in TOLD["messages"] if one["merged"] != one["messages"]]
)
def test_late_system_messages_are_gathered_where_the_template_wants_them_in_front(
    case: dict[str, Any],
) -> None:
    chat = made(case, "messages")

    early = vllm_call(chat, Traits(late=False)).messages
    late = vllm_call(chat, Traits(late=True)).messages

    assert chat.gathers_system
    assert [(one["role"], one["content"]) for one in early] == [
        (one["role"], one["content"]) for one in case["merged"]
    ]
    assert [one["role"] for one in late] == [one["role"] for one in case["messages"]]


def test_the_attribution_is_left_out_of_system_blocks_alone() -> None:
    body = {
        "messages": [
            USER,
            {"role": "system", "content": [{"type": "text", "text": BILLING_HEADER}]},
        ]
    }

    assert made({"body": body}, "messages").messages == [USER]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("messages", {"messages": [{"role": "user", "content": [{"type": "sound"}]}]}),
        ("messages", {"messages": []}),
        ("messages", {"messages": [{"role": "tool", "content": "x"}]}),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "content": [{"type": "text", "text": 3}]}
                        ],
                    }
                ]
            },
        ),
        (
            "messages",
            {
                "messages": [
                    USER,
                    {
                        "role": "system",
                        "content": [
                            {
                                "type": "tool_removal",
                                "tool": {"type": "tool_reference", "name": "z"},
                            }
                        ],
                    },
                ]
            },
        ),
        ("messages", {"messages": [USER], "tools": [{"name": "a"}]}),
        ("responses", {"input": 3}),
        ("responses", {"input": []}),
        ("responses", {"input": [{"type": "reasoning", "encrypted_content": "x"}]}),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}),
    ],
)
def test_what_vllm_refuses_is_refused(kind: str, body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        made({"body": body}, kind)
