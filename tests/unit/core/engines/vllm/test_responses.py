from typing import Any

import pytest

from tests.unit.core.engines.vllm.turns_told import TOLD, USER, as_told, made, normal


@pytest.mark.parametrize("case", TOLD["responses"])
def test_a_response_is_the_chat_that_vllm_makes_of_it(case: dict[str, Any]) -> None:
    chat = made(case, "responses")

    kwargs = case["chat_template_kwargs"]
    assert (normal(chat.messages), as_told(chat.tools)) == (normal(case["messages"]), case["tools"])
    assert chat.add_generation_prompt == kwargs["add_generation_prompt"]
    assert chat.continue_final_message == kwargs["continue_final_message"]
    assert chat.reasoning_effort == kwargs.get("reasoning_effort")
    assert chat.chat_template_kwargs.items() <= kwargs.items()


def test_parts_of_items_that_are_no_text_are_none() -> None:
    items = [{"type": "reasoning", "content": [3]}, {"role": "assistant", "content": []}, USER]

    chat = made({"body": {"input": items}}, "responses")

    assert chat.messages == [
        {"role": "assistant", "reasoning": ""},
        {"role": "assistant", "content": []},
        USER,
    ]


def test_tools_that_are_no_functions_are_not_rendered() -> None:
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [3, {}]}]

    assert made({"body": {"input": "hi", "tools": tools}}, "responses").tools is None
