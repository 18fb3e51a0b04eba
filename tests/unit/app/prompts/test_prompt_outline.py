from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.app.prompts.prompt_outline import PromptOutline, prompt_outline
from kvmesh.core.buckets.beginnings import DEPTHS, MOST_ENDS, NO_KEYS
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ENDPOINTS, parse_request

CHAT = "/v1/chat/completions"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def outline(path: str, **fields: Any) -> PromptOutline:
    endpoint = ENDPOINTS[path]
    body = msgspec.json.encode({"model": "m"} | fields)
    return prompt_outline(endpoint, parse_request(body, endpoint))


def chat(*contents: Any, **fields: Any) -> PromptOutline:
    """Outline a chat whose messages are of the user and the assistant in turn."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[number % 2], "content": content} for number, content in enumerate(contents)
    ]
    return outline(CHAT, messages=messages, **fields)


def test_a_chat_has_its_length_its_beginning_and_its_opening() -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}],
        },
        {"role": "assistant", "content": "Hello"},
    ]

    found = outline(CHAT, messages=messages)

    assert (found.chars, found.start) == (18, "Be short.\nHi\n!\nHello")
    assert found.opening == "Be short.\nHi\n!"
    assert found.keys.instructions is not None
    assert len(found.keys.ends) == 1
    long = chat("x" * 300, "y" * 40_000)
    assert (long.opening, len(long.start), long.chars) == ("x" * 256, DEPTHS[-1], 40_300)


def test_the_same_conversation_has_the_same_keys_on_each_surface_that_has_a_head() -> None:
    turns = [{"role": "user", "content": "Hi"}]

    chatted = outline(CHAT, messages=[{"role": "system", "content": "Be short."}, *turns])
    messages = outline("/v1/messages", system="Be short.", messages=turns)
    parts = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    marked = outline("/v1/messages", system=parts, messages=turns)
    responses = outline("/v1/responses", instructions="Be short.", input=turns)
    short = outline("/v1/responses", instructions="Be short.", input="Hi")

    assert chatted.keys == messages.keys == marked.keys == responses.keys == short.keys
    assert short.opening == "Be short.\nHi"


def test_what_moves_between_turns_changes_no_key_and_what_engines_see_does() -> None:
    text = {"type": "text", "text": "Hi"}
    image = {"type": "image_url", "image_url": {"url": "data:1"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    plain = chat([text, image])

    assert chat([text | mark, image | mark]).keys == plain.keys
    assert chat([text]).keys == chat("Hi").keys
    others = [
        chat([text, image | {"image_url": {"url": "data:2"}}]),
        chat([text, image], model="n"),
        chat([text, image], cache_salt="s"),
        chat([text, image], tools=[{"type": "function"}]),
    ]
    assert len({one.keys.root for one in (plain, *others)}) == 5
    assert chat([text], tools=[]).keys == chat([text], tools=None).keys == chat([text]).keys


def test_calls_and_their_outputs_tell_turns_of_a_responses_input_apart() -> None:
    def called(output: str) -> PromptOutline:
        call = {"type": "function_call", "arguments": "{}", "call_id": "1"}
        reported = {"type": "function_call_output", "output": output, "call_id": "1"}
        said = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
        return outline("/v1/responses", input=[said, call, reported])

    assert called("one").keys.root == called("two").keys.root
    assert called("one").keys.ends[1:] == called("two").keys.ends[1:]
    assert called("one").keys.ends[0] != called("two").keys.ends[0]


def test_texts_have_depths_and_the_whole() -> None:
    text = outline("/v1/completions", prompt="Once")
    tokens = outline("/v1/completions", prompt=[[1, 2, 3]])

    assert (text.chars, text.start, text.opening) == (4, "Once", "Once")
    assert text.keys.whole is not None
    assert text.keys.root is None
    assert tokens.start == "1,2,3"
    assert outline("/v1/embeddings", input=["Once", "more"]).start == "Once"
    with pytest.raises(RequestError):
        outline("/v1/completions", prompt=[])


@pytest.mark.parametrize("messages", [[1, 2], ["Hi"], [{"content": "x"}, None], [[]]])
def test_what_is_no_chat_has_no_outline(messages: Any) -> None:
    assert outline(CHAT, messages=messages) == PromptOutline(0, "", "", NO_KEYS)


@given(st.lists(st.dictionaries(st.sampled_from(("role", "content", "output", "x")), JSON)))
def test_any_messages_have_an_outline(messages: list[dict[str, Any]]) -> None:
    found = outline(CHAT, messages=messages)

    assert found.keys.ends == found.keys.ends[:MOST_ENDS]
    assert (found.keys.root is None) == (not messages)


def test_a_long_prompt_is_known_by_its_beginning() -> None:
    texts = [f"{number}" * 900_000 for number in range(5)]

    whole, beginning = chat(*texts), chat(*texts[:4])

    assert whole.start == beginning.start
    assert whole.opening == beginning.opening
    assert whole.chars == pytest.approx(5 * 900_000, rel=0.001)
