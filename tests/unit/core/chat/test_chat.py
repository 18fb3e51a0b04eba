import msgspec
import pytest

from kvmesh.core.chat.chat import ChatInput, content_text, part_text
from kvmesh.errors import RequestError

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TEXT = {"type": "text", "text": "a"}


def test_a_body_is_read_the_same_raw_and_decoded() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "é"}], "top_k": 3, "tools": []}
    raw = msgspec.json.encode(body)

    chats = [ChatInput.from_body(form) for form in (body, raw, bytearray(raw), memoryview(raw))]

    assert all(chat == chats[0] for chat in chats)
    assert chats[0].messages == [{"role": "user", "content": "é"}]
    assert chats[0].tools is None
    assert chats[0].add_generation_prompt
    assert not chats[0].truncated


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"messages":1}', b'{"messages":["x"]}', b"\xff", b'{"messages":[]}'],
)
def test_what_is_no_chat_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        ChatInput.from_body(body)

    assert caught.value.status == 400
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": 1, "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "tool_calls": "x"}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]}, "messages"),
        ({"messages": [{"role": "user"}], "tools": [{"function": []}]}, "tools"),
    ],
)
def test_calls_without_shape_are_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatInput.from_body(fields)

    assert caught.value.param == param


def test_continuing_the_final_message_leaves_the_generation_prompt_out() -> None:
    body = {"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": True}

    chat = ChatInput.from_body(body)

    assert chat.continue_final_message
    assert not chat.add_generation_prompt


@pytest.mark.parametrize(
    ("parts", "kept"), [([IMAGE, TEXT], []), ([TEXT, IMAGE], [TEXT]), ([TEXT, "b", 7], [TEXT, "b"])]
)
def test_a_chat_is_cut_before_its_first_media_part(parts: list[object], kept: list[object]) -> None:
    first = {"role": "system", "content": [TEXT]}
    last = {"role": "user", "content": "later"}
    body = {"messages": [first, {"role": "user", "content": parts}, last]}

    chat = ChatInput.from_body({**body, "continue_final_message": True})

    assert chat.messages == [first, {"role": "user", "content": kept}]
    assert chat.truncated
    assert not chat.add_generation_prompt
    assert not chat.continue_final_message


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("x", "x"),
        ({"type": "text", "text": "x"}, "x"),
        ({"text": "x"}, "x"),
        ({"type": "input_text", "text": "x"}, "x"),
        ({"type": "output_text", "text": "x"}, "x"),
        ({"type": "refusal", "refusal": "x"}, "x"),
        ({"type": "thinking", "thinking": "x"}, "x"),
        ({"type": "text", "text": 1}, None),
        ({"type": "video_url"}, None),
        (None, None),
    ],
)
def test_only_text_parts_have_text(part: object, text: str | None) -> None:
    assert part_text(part) == text


def test_content_of_any_shape_has_a_text() -> None:
    assert content_text("x") == "x"
    assert content_text(None) == ""
    assert content_text([TEXT, IMAGE, "b"]) == "a\nb"
    assert content_text([TEXT, "b"], " ") == "a b"
