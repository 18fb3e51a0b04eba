import msgspec
import pytest

from kvmesh.core.chat.chat import ChatInput, content_text
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

    assert (caught.value.status, caught.value.param) == (400, "messages")


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


def test_content_of_any_shape_has_a_text() -> None:
    assert (content_text("x"), content_text(None)) == ("x", "")
    assert (content_text([TEXT, IMAGE, "b"]), content_text([TEXT, "b"], " ")) == ("a\nb", "a b")
