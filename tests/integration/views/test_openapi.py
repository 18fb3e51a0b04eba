"""What live routers and meta-routers answer, held against the OpenAPI document they serve."""

from typing import Any

import httpx
import jsonschema
import pytest

from kvmesh.app.front.front import PathRoutes
from kvmesh.app.views.openapi import PAGES
from kvmesh.core.admission.paths import rows_at
from tests.integration.mesh.test_mesh import RunningMesh, eventually, mesh  # noqa: F401  the fixture is used by name
from tests.integration.support import live_router

pytestmark = pytest.mark.integration

CHAT: dict[str, Any] = {
    "model": "mock",
    "max_tokens": 2,
    "messages": [{"role": "user", "content": "Hello, who is there? " * 20}],
}


class Described:
    """A document, and what it says of answers."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self.whole = whole

    def check(self, method: str, path: str, answer: httpx.Response) -> None:
        """Hold an answer against the schema of its status, and its fields against those named."""
        responses = self.whole["paths"][path][method]["responses"]
        described = responses.get(str(answer.status_code), responses["default"])
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert kind in described.get("content", {"": {}}), (path, answer.status_code, kind)
        if kind != "application/json":
            return
        schema = described["content"][kind]["schema"]
        jsonschema.validate(answer.json(), schema | {"components": self.whole["components"]})
        named = self._fields(schema)
        assert not named or answer.json().keys() <= named, (path, answer.json().keys() - named)

    def _fields(self, schema: dict[str, Any]) -> set[str]:
        """Return the fields of an object, or of one of several; none where all are possible."""
        found: set[str] = set()
        for one in schema.get("anyOf", [schema]):
            if "$ref" in one:
                name = one["$ref"].rpartition("/")[2]
                if name in OPEN:
                    return set()
                found |= self.whole["components"]["schemas"][name].get("properties", {}).keys()
        return found


def filled(path: str, request_id: str) -> str:
    """Return a path with an id for each name in it."""
    names = {"{request_id}": request_id, "{model}": "mock", "{worker_id}": "w9", "{stream_id}": "s"}
    for name, word in names.items():
        path = path.replace(name, word)
    return path


BODIES: dict[tuple[str, str], Any] = {
    ("post", "/v1/route"): CHAT,
    ("post", "/v1/bucket"): CHAT,
    ("put", "/admin/admission"): {"max_queued": 9},
    ("put", "/admin/policy"): {"formula": "prefill-decode", "at_once": True},
    ("post", "/workers"): {"url": "http://127.0.0.1:9", "name": "w9"},
}
OPEN = {"Model"}
"""What has the fields that engines report, too."""

SLOW = {("get", "/v1/events")}
"""Streams without an end."""

REFUSED = {
    ("get", "/admin/trace"),
    ("delete", "/workers/{worker_id}"),
    ("get", "/v1/streams/{stream_id}"),
    ("get", "/login"),
    ("post", "/login"),
    ("post", "/logout"),
}
"""Without --auto-tune, of a worker that was forgotten, of no stream, and without --api-keys: these
answers have the shape of errors.
"""


async def test_a_routers_answers_are_as_documented() -> None:
    async with (
        live_router.mockers() as (engine,),
        live_router.client_of(live_router.router([engine.url])) as client,
    ):
        described = Described((await client.get("/openapi.json")).json())
        chat = await client.post("/v1/chat/completions", json=CHAT)
        described.check("post", "/v1/chat/completions", chat)
        statuses = {}
        drain = {"worker": chat.headers["x-kvmesh-worker"], "draining": False}
        bodies = BODIES | {("post", "/admin/drain"): drain}
        for page in (one for one in PAGES if "router" in one.by):
            key = page.method, page.path
            if key in SLOW:
                continue
            path = filled(page.path, chat.headers["x-request-id"])
            query = "?url=http://127.0.0.1:9" if key == ("delete", "/workers") else ""
            answer = await client.request(page.method, path + query, json=bodies.get(key))
            statuses[key] = answer.status_code
            described.check(*key, answer)

    assert {key for key, status in statuses.items() if status >= 400} == REFUSED


def test_a_meta_routers_answers_are_as_documented(
    mesh: RunningMesh,  # noqa: F811
) -> None:
    mesh.chat("Hello", headers={"x-kvmesh-bucket": "chat"})
    found = mesh.http.get(f"{mesh.url}/v1/decisions").json()["decisions"]
    described = Described(mesh.http.get(f"{mesh.url}/openapi.json").json())
    for page in (one for one in PAGES if "meta-router" in one.by):
        key = page.method, page.path
        if key in SLOW:
            continue
        path = filled(page.path, found[0]["request_id"])
        answer = mesh.http.request(page.method, f"{mesh.url}{path}", json=BODIES.get(key))
        assert answer.status_code < 500, (key, answer.text)
        described.check(*key, answer)


async def test_no_path_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a router adds to its routes: it is described, an engine's, or the dashboard's."""
    added: set[tuple[str, str]] = set()
    add, add_prefix = PathRoutes.add, PathRoutes.add_prefix

    def note(self: Any, method: str, path: str, route: Any) -> None:
        added.add((method.lower(), path))
        add(self, method, path, route)

    def note_prefix(self: Any, prefix: str, route: Any) -> None:
        added.add(("get", prefix))
        add_prefix(self, prefix, route)

    monkeypatch.setattr(PathRoutes, "add", note)
    monkeypatch.setattr(PathRoutes, "add_prefix", note_prefix)
    async with live_router.mockers() as (engine,), live_router.router([engine.url]):
        pass

    described = {(page.method, page.path.partition("{")[0]) for page in PAGES}
    described |= {("get", path) for method, path in described if path.endswith("/")}
    left = {
        (method, path)
        for method, path in added - described
        if not rows_at(path) and not rows_at(f"{path}x") and not path.startswith("/dashboard/")
    }
    assert left == {("get", "/v1/")}
