from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmesh.core.admission.tenant_salt import TenantSalts, parse_sharing
from kvmesh.errors import ConfigError

SECRET = b"0123456789abcdef"
FILE = """
[groups]
team = ["ann", "ben"]

[[public]]
prompt = "Once upon a time"

[[public]]
messages = [
    {role = "system", content = "Be kind."},
    {role = "user", content = "Hello"},
]
"""
CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


def salts() -> TenantSalts:
    return TenantSalts(SECRET, parse_sharing(FILE, "file"))


def fields(**body: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}


def test_a_salt_is_what_engines_take() -> None:
    salt = salts().salt("tenant", b"own")

    # Source: vLLM 0.32 `validate_cache_salt`: 128 characters, none of @ / \ NUL.
    assert len(salt) == 64
    assert set(salt) <= set("0123456789abcdef")


names = st.text(max_size=8)
owns = st.binary(max_size=8)


@given(names, owns, names, owns)
@example("ab", b"c", "a", b"bc")
def test_two_tenants_or_two_own_salts_have_two_salts(
    one: str, own: bytes, other: str, others: bytes
) -> None:
    made = TenantSalts(SECRET)

    assert (made.salt(one, own) == made.salt(other, others)) == ((one, own) == (other, others))
    assert made.salt(one, own) != made.public_salt()


def test_salts_need_the_secret_and_are_the_same_with_it() -> None:
    assert TenantSalts(SECRET).salt("ann") == TenantSalts(SECRET).salt("ann")
    assert TenantSalts(SECRET).salt("ann") != TenantSalts(SECRET[::-1]).salt("ann")
    assert TenantSalts(SECRET).mark != TenantSalts(SECRET[::-1]).mark


def test_a_group_shares_one_and_is_no_tenant_of_that_name() -> None:
    made = salts()

    assert made.salt("ann", b"x") == made.salt("ben", b"x") != made.salt("ann")
    assert made.salt("team") != made.salt("ann")
    assert made.salt("eve") != made.salt("ann")


@pytest.mark.parametrize(
    ("public", "body"),
    [
        (True, {"prompt": "Once upon a time"}),
        (True, {"prompt": "Once upon", "max_tokens": 5, "stream": True, "model": "m"}),
        (False, {"prompt": "Once upon a time there was"}),
        (False, {"prompt": "Twice"}),
        (False, {"prompt": ""}),
        (False, {"prompt": ["Once"]}),
        (False, {"prompt": "Once", "suffix": "private"}),
        (False, {"prompt": "Once", "messages": CHAT}),
        (False, {"prompt": "Once", "unheard_of": 1}),
        (False, {"model": "m"}),
        (True, {"messages": CHAT}),
        (True, {"messages": CHAT[:1]}),
        (False, {"messages": []}),
        (False, {"messages": CHAT[1:]}),
        (False, {"messages": [*CHAT, {"role": "user", "content": "secret"}]}),
        (False, {"messages": [CHAT[0], {"role": "user", "content": "Hello "}]}),
        (False, {"messages": [CHAT[0] | {"name": "private"}]}),
        (False, {"messages": [{"role": "system", "content": [{"text": "Be kind."}]}]}),
        (False, {"messages": CHAT, "tools": []}),
        (False, {"messages": CHAT, "chat_template_kwargs": {}}),
        (False, {"messages": "Be kind."}),
    ],
)
def test_public_is_what_is_public_to_its_last_token(public: bool, body: dict[str, Any]) -> None:
    assert salts().is_public(fields(**body)) is public
    assert TenantSalts(SECRET).is_public(fields(**body)) is False


def test_a_prompt_that_is_no_text_is_private() -> None:
    assert not salts().is_public({"prompt": msgspec.Raw(b'"\xff"')})
    assert not salts().is_public({"messages": msgspec.Raw(b"[" * 5000)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "file: "),
        ("[groups]\na = 1", "groups"),
        ("[groups]\na = ['t']\nb = ['t']", "tenant 't' is in groups 'a' and 'b'"),
        ("[[public]]\n", "public entry 1: give prompt, or messages"),
        ("[[public]]\nprompt = 'a'\nmessages = [{role = 'user', content = 'b'}]", "not both"),
        ("[[public]]\nprompt = 'a'\ntools = 1", "tools"),
        ("[shared]", "shared"),
    ],
)
def test_a_file_that_cannot_be_is_told_where(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_sharing(text, "file")
