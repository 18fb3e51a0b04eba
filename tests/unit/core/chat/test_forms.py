import msgspec
import pytest

from kvmesh.core.chat.forms import chat_of_turns
from kvmesh.errors import RequestError

NONE = msgspec.Raw(b"")


def test_a_text_is_one_turn_and_the_system_stands_in_front() -> None:
    chat = chat_of_turns(msgspec.Raw(b'"hi"'), msgspec.Raw(b'"Be kind."'), msgspec.Raw(b"null"))

    assert chat.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]
    assert chat.tools is None


def test_turns_and_tools_are_taken_as_they_are() -> None:
    turns = [{"role": "user", "content": "hi"}]
    tools = [{"name": "t"}]

    chat = chat_of_turns(
        msgspec.Raw(msgspec.json.encode(turns)), NONE, msgspec.Raw(msgspec.json.encode(tools))
    )

    assert (chat.messages, chat.tools) == (turns, tools)


@pytest.mark.parametrize("turns", [b"3", b"[3]", b'"\xff"', b"[]"])
def test_what_is_no_conversation_is_refused(turns: bytes) -> None:
    with pytest.raises(RequestError):
        chat_of_turns(msgspec.Raw(turns), NONE, NONE)
