import pytest

from kvmesh.core.chat.chat import keep_none
from kvmesh.core.chat.inference import decode_request
from kvmesh.core.engines.registry import UNKNOWN


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("responses", b'{"input":"hi","instructions":"Be kind."}'),
        ("messages", b'{"messages":[{"role":"user","content":"hi"}],"system":"Be kind."}'),
    ],
)
def test_an_unknown_engine_takes_turns_as_they_came(kind: str, body: bytes) -> None:
    chat = UNKNOWN.turns(decode_request(body), kind, keep_none)

    assert chat.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]
