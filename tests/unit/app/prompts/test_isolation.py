import json
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.prompts.isolation import REFUSED_FIELDS, Isolation, isolation_of
from kvmesh.core.admission.tenant_salt import TenantSalts, parse_sharing
from kvmesh.core.chat.inference import read_chat
from kvmesh.errors import ConfigError, RequestError
from kvmesh.settings.requests import TenantSettings
from kvmesh.transport.http.openai import ENDPOINTS, parse_request
from kvmesh.transport.http.server.request import Request

DEEP = 200_000
"""More than any interpreter decodes: 3.11 some hundreds, 3.13 some thousands."""
SECRET = b"0123456789abcdef"
SALTS = TenantSalts(SECRET, parse_sharing("[[public]]\nprompt = 'Once upon'", "file"))
COMPLETIONS = ENDPOINTS["/v1/completions"]
KEPT = Isolation(SALTS, "X-Kvmesh-Tenant")


def asked(text: str, *tenants: str) -> Request:
    headers = [(b"x-kvmesh-tenant", tenant.encode()) for tenant in tenants]
    return Request("POST", b"/v1/completions", headers, text.encode())


def salt_of(text: str, *tenants: str) -> str:
    """Return the salt that routing reads and the engine gets, which are one."""
    request = asked(text, *tenants)
    parsed, sent = KEPT.apply(request, parse_request(request.body, COMPLETIONS))
    names: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names.extend(name for name, _ in pairs)
        return dict(pairs)

    fields = json.loads(sent, object_pairs_hook=note)
    assert names.count("cache_salt") == 1
    assert "extra_key" not in names
    assert fields["cache_salt"] == parsed.cache_salt
    return parsed.cache_salt or ""


def body(*more: str) -> str:
    return "{" + ", ".join(('"model": "m", "prompt": "secret"', *more)) + "}"


def test_values_come_to_the_engine_as_they_were_sent() -> None:
    request = asked('{"prompt": "p\\u00e9" , "temperature": 0.10, "x": {"y":  1E2}}', "ann")

    parsed, sent = KEPT.apply(request, parse_request(request.body, COMPLETIONS))

    salt = SALTS.salt("ann").encode()
    assert sent == (
        b'{"prompt":"p\\u00e9","temperature":0.10,"x":{"y":  1E2},"cache_salt":"%b"}' % salt
    )
    assert bytes(parsed.prompt) == b'"p\\u00e9"'


def test_a_chat_is_salted_as_it_was_read() -> None:
    request = asked('{"messages": [{"role": "user", "content": "hi"}]}', "ann")
    chat = read_chat(request.body)
    assert chat is not None

    parsed, sent = KEPT.apply(request, chat)

    assert parsed.cache_salt == SALTS.salt("ann") == json.loads(sent)["cache_salt"]


@pytest.mark.parametrize(
    "own",
    [
        '"cache_salt": "known"',
        '"cache\\u005fsalt": "known"',
        '"cache_salt": "a", "cache_salt": "known"',
        '"cache_salt": null, "\\u0063ache_salt": "known"',
        '"cache_salt": "\\u006bnown"',
    ],
)
def test_a_clients_own_salt_is_folded_in_however_it_is_written(own: str) -> None:
    salt = salt_of(body(own), "ann")

    assert salt == salt_of(body('"cache_salt": "known"'), "ann")
    assert salt not in {"known", salt_of(body(), "ann"), salt_of(body(own), "ben")}


def test_sglangs_extra_key_is_folded_in_and_is_another_than_a_salt() -> None:
    found = {
        salt_of(body(*own), "ann")
        for own in (
            (),
            ('"extra_key": "k"',),
            ('"cache_salt": "k"',),
            ('"cache_salt": "k"', '"extra_key": "k"'),
            ('"extra_key": ["k"]',),
        )
    }

    assert len(found) == 5
    assert salt_of(body('"extra_key": null'), "ann") == salt_of(body(), "ann")


def test_an_extra_key_that_was_folded_in_divides_nothing_more() -> None:
    request = asked(body('"extra_key": "k"'), "ann")

    parsed, sent = KEPT.apply(request, parse_request(request.body, COMPLETIONS))

    assert not parsed.extra_key
    assert parsed == parse_request(sent, COMPLETIONS)


def test_two_tenants_are_refused() -> None:
    with pytest.raises(RequestError, match="2 headers"):
        salt_of(body(), "ann", "ben")


def test_a_public_prompt_is_shared_and_one_with_a_private_end_or_salt_is_not() -> None:
    public, private = '{"prompt": "Once upon"}', '{"prompt": "Once upon a secret"}'

    assert salt_of(public, "ann") == salt_of(public, "ben") == SALTS.public_salt()
    assert salt_of(private, "ann") == SALTS.salt("ann")
    assert salt_of('{"prompt": "Once upon", "cache_salt": "x"}', "ann") != SALTS.public_salt()


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
def test_what_names_other_requests_state_is_refused(name: str) -> None:
    escaped = name.replace("_", "\\u005f")
    for field in (f'"{name}": {{"a": 1}}', f'"{escaped}": "x"', f'"vllm_xargs": {{"{name}": 1}}'):
        with pytest.raises(RequestError, match=name) as raised:
            salt_of(body(field), "ann")
        assert raised.value.status == 403
    assert salt_of(body(f'"{name}": null', '"vllm_xargs": {"other": 1}'), "ann")
    assert salt_of(body('"vllm_xargs": null'), "ann")


@pytest.mark.parametrize(
    "field", ['"vllm_xargs": 5', '"cache_salt": [' + "[" * DEEP + "]" * (DEEP + 1)]
)
def test_what_cannot_be_read_is_refused(field: str) -> None:
    request = asked(body(field), "ann")
    with pytest.raises(RequestError):
        KEPT.apply(request, parse_request(asked(body(), "ann").body, COMPLETIONS))


def test_what_is_only_remembered_is_salted_alike_for_one_tenant() -> None:
    parsed = parse_request(asked(body()).body, COMPLETIONS)

    assert KEPT.of_tenant(asked(body(), "ann"), parsed) == SALTS.salt("ann")
    assert KEPT.of_tenant(asked(body(), "ben"), parsed) == SALTS.salt("ben")


def settings(folder: Path, secret: str = "x" * 16, sharing: str | None = None) -> TenantSettings:
    (folder / "secret").write_text(secret)
    if sharing is not None:
        (folder / "sharing.toml").write_text(sharing)
    return TenantSettings(
        tenant_secret_file=folder / "secret",
        tenant_sharing_file=None if sharing is None else folder / "sharing.toml",
    )


def test_isolation_is_off_until_asked_for(tmp_path: Path) -> None:
    assert isolation_of(TenantSettings(), "x-kvmesh-tenant") is None
    with pytest.raises(ConfigError, match="without --tenant-secret-file"):
        isolation_of(TenantSettings(tenant_sharing_file=tmp_path), "x-kvmesh-tenant")


def test_isolation_has_a_secret_that_survives_a_restart(tmp_path: Path) -> None:
    first = isolation_of(settings(tmp_path), "x-kvmesh-tenant")
    second = isolation_of(settings(tmp_path, sharing="[groups]\na = ['b']"), "x-kvmesh-tenant")

    assert first is not None
    assert second is not None
    assert first.salts.salt("ann") == second.salts.salt("ann")
    assert first.salts.salt("b") != second.salts.salt("b")


@pytest.mark.parametrize("secret", ["", "short"])
def test_no_secret_or_a_short_one_is_refused(tmp_path: Path, secret: str) -> None:
    with pytest.raises(ConfigError, match="--tenant-secret-file "):
        isolation_of(settings(tmp_path, secret), "x-kvmesh-tenant")


def test_isolation_needs_to_know_the_tenant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tenant-header"):
        isolation_of(settings(tmp_path), "")


def test_a_file_of_what_is_shared_that_is_not_there_is_named(tmp_path: Path) -> None:
    made = settings(tmp_path, sharing="")
    (tmp_path / "sharing.toml").unlink()
    with pytest.raises(ConfigError, match=r"--tenant-sharing-file .*sharing.toml"):
        isolation_of(made, "x-kvmesh-tenant")
