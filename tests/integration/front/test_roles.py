"""Every path of a front door for every role: who gets it, and that none is without a rule."""

import re
from pathlib import Path

import pytest

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.front.front import PathRoutes
from kvmesh.core.admission.access import BELOW, OPEN_PATHS, PATHS, role_for
from kvmesh.core.admission.paths import ROWS
from kvmesh.transport.http.server.exchange import Exchange
from tests.integration.support.two_tenants import HOLDERS, Kind, Tenants, chat, tenants

pytestmark = pytest.mark.integration

API = Path(__file__).parents[3] / "docs/reference/api.md"
PREFIXES = {"/v1/", "/"}
"""Where the rest goes: what has no rule of its own asks for `operate`."""

OTHERS = {
    "/v1/load_lora_adapter",
    "/v1/files",
    "/nothing",
    "/v1/route/",
    "/metrics/",
    "/admin/other",
    "/v1/decisions",
    "/v1/decisions/r-1",
    "/v1/models/mock",
}


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """What the servers of a test serve, as they begin to."""
    seen: set[tuple[str, str]] = set()
    add, add_prefix = PathRoutes.add, PathRoutes.add_prefix

    def noted(self: PathRoutes[Exchange], method: str, path: str, route: object) -> None:
        seen.add((method, path))
        add(self, method, path, route)  # type: ignore[arg-type]  # passed on

    def noted_prefix(self: PathRoutes[Exchange], prefix: str, route: object) -> None:
        seen.add(("GET", prefix))
        add_prefix(self, prefix, route)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(PathRoutes, "add", noted)
    monkeypatch.setattr(PathRoutes, "add_prefix", noted_prefix)
    return seen


@pytest.mark.parametrize("kind", ["router", "meta, proxy key"])
async def test_every_path_is_for_the_roles_of_the_table_and_no_other(
    kind: Kind, tmp_path: Path, mounted: set[tuple[str, str]]
) -> None:
    async with tenants(kind, tmp_path, apart=False) as door:
        paths = {path for _, path in mounted}
        rows = {row.path.partition("{}")[0] for row in ROWS}
        assert paths - PREFIXES <= {*PATHS, *BELOW, *OPEN_PATHS, *figures(paths), *rows}
        for method, path in sorted(mounted | {("GET", one) for one in OTHERS}):
            if path in PREFIXES or path == "/v1/events":  # a stream: see test_tenants
                continue
            await ask(door, method, path)


def figures(paths: set[str]) -> set[str]:
    """Return the files of the dashboard, which one rule covers."""
    return {path for path in paths if path.startswith("/dashboard/")}


async def ask(door: Tenants, method: str, path: str) -> None:
    wanted = role_for(path)
    body = chat("hello") if method in {"POST", "PUT"} else None
    nobody = await door.send("", method, path, body)
    assert (nobody.status_code == 401) == (path not in OPEN_PATHS), (method, path)
    for holder, (_, roles) in HOLDERS.items():
        answer = await door.send(holder, method, path, body)
        may = wanted is None or wanted in roles or "operate" in roles
        refused = answer.status_code == 403 and (
            method == "HEAD" or "asks for a key that may" in answer.text
        )
        assert refused != may, (holder, method, path, answer.status_code, answer.text[:200])
        assert answer.status_code != 401


async def test_a_key_of_a_file_without_roles_infers_and_views_its_own(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        file = tmp_path / "keys.toml"
        old = "\n".join(
            line for line in file.read_text().splitlines() if not line.startswith("roles")
        )
        file.write_text(old)
        door.keys["new"] = add_key(ApiKeyOptions("new", file=file))
        while (await door.send("new", "GET", "/v1/models")).status_code == 401:
            pass
        statuses = {
            path: (await door.send("boss", "GET", path)).status_code
            for path in ("/v1/models", "/v1/overview", "/metrics")
        }
        new = await door.send("new", "GET", "/v1/overview")

    assert statuses == {"/v1/models": 200, "/v1/overview": 200, "/metrics": 403}
    assert new.status_code == 403


async def test_a_proxy_is_believed_of_its_own_roles_alone(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        file = tmp_path / "keys.toml"
        door.keys["gateway"] = add_key(
            ApiKeyOptions("gateway", file=file, proxy=True, role=("infer", "view"))
        )
        while (await door.send("gateway", "GET", "/v1/models")).status_code == 401:
            pass
        sent = {"x_kvmesh_tenant": "kitchen", "x_kvmesh_roles": "infer operate"}
        answers = [
            (await door.send("gateway", "GET", path, **sent)).status_code
            for path in ("/v1/models", "/v1/overview", "/metrics")
        ]

    assert answers == [200, 403, 403]


def test_the_table_in_the_documents_is_the_one_in_force() -> None:
    text = API.read_text(encoding="utf-8").partition("### Roles of keys")[2]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    reported: dict[str, set[str]] = {}
    for role, paths in (row[:2] for row in rows[:3]):
        reported[role.strip(" `")] = set(re.findall(r"`([^`]+)`", paths))

    for role in ("infer", "view", "operate"):
        rules = {path for path, one in PATHS.items() if one == role}
        below = {f"{path}…" for path, one in BELOW.items() if one == role}
        assert reported[role] == rules | below, role
