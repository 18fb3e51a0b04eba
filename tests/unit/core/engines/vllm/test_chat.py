from types import SimpleNamespace
from typing import Any

import pytest

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.engines.vllm.chat import refuses_late_system, vllm_call


@pytest.mark.parametrize(
    ("source", "refuses"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{{ raise_exception('no') }}", True),
        ("{% generation %}{% endgeneration %}", True),
        ("{{ messages[0].content + 3 }}", True),
    ],
)
def test_a_template_is_asked_in_a_bare_environment(source: str, *, refuses: bool) -> None:
    assert refuses_late_system(source) is refuses


def test_what_stands_for_media_reaches_the_template_as_it_is() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "What?", "more": 1}]
    chat = ChatInput([{"role": "user", "content": parts}])
    template: Any = SimpleNamespace(content_format=lambda _: "openai", knows_developer=True)

    (message,) = vllm_call(chat, template).messages

    assert message["content"] == parts
