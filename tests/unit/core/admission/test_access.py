import pytest

from kvmesh.core.admission.access import (
    BELOW,
    OPEN_PATHS,
    PATHS,
    ROLES,
    check_role,
    forwarded_roles,
    role_for,
    tenant_of,
)
from kvmesh.core.admission.paths import Role
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ENDPOINTS


def test_every_inference_path_asks_for_infer() -> None:
    assert {role_for(path) for path in ENDPOINTS} == {"infer"}


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("/health", None),
        ("/v1/models/meta/llama", "infer"),
        ("/v1/decisions/any/id", "view"),
        ("/dashboard/icon.svg", "view"),
        ("/metrics", "operate"),
        ("/metrics/", "operate"),
        ("/v1/load_lora_adapter", "operate"),
        ("/v1/files/f-1", "infer"),
        ("/v1/files/f-1/content/other", "operate"),
        ("/v1/vector_stores/v-1/files", "operate"),
        ("/V1/route", "operate"),
        ("/v1/route/", "operate"),
        ("//v1/route", "operate"),
        ("/healthy", "operate"),
        ("", "operate"),
    ],
)
def test_what_no_rule_names_asks_for_operate(path: str, role: Role | None) -> None:
    assert role_for(path) == role


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_have_its_paths_and_operate_all(role: Role) -> None:
    for path in (*OPEN_PATHS, *PATHS, *BELOW, "/anything"):
        wanted = role_for(path)
        if wanted in {None, role} or role == "operate":
            check_role(path, (role,))
            continue
        with pytest.raises(RequestError, match=f"--role {wanted}") as raised:
            check_role(path, (role,))
        assert raised.value.status == 403


def test_a_tenant_is_told_once() -> None:
    headers = [(b"x", b"1"), (b"tenant", b" a "), (b"tenants", b"b")]

    assert (tenant_of(headers, b"tenant"), tenant_of(headers, b"none")) == ("a", "")
    with pytest.raises(RequestError, match="2 headers tenant"):
        tenant_of([*headers, (b"tenant", b"b")], b"tenant")


def test_roles_that_are_told_only_take_away() -> None:
    assert forwarded_roles(b"view infer") == ("infer", "view")
    assert forwarded_roles(b"operate,view", ("infer", "view")) == ("view",)
    assert forwarded_roles(b"root OPERATE \xff") == ()
