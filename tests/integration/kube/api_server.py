"""A pretended Kubernetes API server: real HTTP, lists in pages, watches with bookmarks, merge
patches of annotations.

What it answers has the shapes recorded of kube-apiserver 1.32: lists with their own version, events
one a line in chunks, `Status` objects for refusals, an ERROR event for versions that are too old.
"""

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]

V1 = "inference.networking.k8s.io/v1"
OBJECTIVES = ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2")
TOKEN = "rotates"  # noqa: S105  a pretender's


class ApiServer:
    """`put` and `delete` objects; who watches is told. `faults` answer in place of a path.

    `served` are the collections it has, by path; `log` has what was asked, `patched` what was
    changed: name and annotations. Patches take `patch_s`. `kept` versions of the
    past can be watched from, older ones are gone; a watch lasts `watch_s` at most.
    """

    def __init__(self) -> None:
        self.version = 100
        self.kept = 1000
        self.token = TOKEN
        self.page = 0
        self.objects: dict[str, dict[str, Object]] = {}
        self.log: list[tuple[str, dict[str, str]]] = []
        self.patched: list[tuple[str, dict[str, str]]] = []
        self.patch_s = 0.0
        self.on_patch: Callable[[], None] = lambda: None
        self.refusals: dict[str, tuple[int, str]] = {}
        self.raw_lines: list[bytes] = []
        self.hangs = False
        self.watch_s = float("inf")
        self.bookmarks = True
        self._history: list[tuple[int, str, str, Object]] = []
        self._updates = asyncio.Condition()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, ssl=tls)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._server is not None:
            await self._server.wait_closed()

    def cut(self) -> None:
        """Drop all connections."""
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()

    def have(self, *paths: str) -> None:
        """Serve these collections, empty."""
        for path in paths:
            self.objects.setdefault(path, {})

    async def put(self, path: str, one: Object) -> Object:
        async with self._updates:
            self.version += 1
            name = one["metadata"]["name"]
            before = self.objects[path].get(name)
            one = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self.version)}}
            self.objects[path][name] = one
            self._history.append((self.version, path, "MODIFIED" if before else "ADDED", one))
            self._updates.notify_all()
        return one

    async def delete(self, path: str, name: str) -> None:
        async with self._updates:
            self.version += 1
            one = self.objects[path].pop(name)
            one["metadata"]["resourceVersion"] = str(self.version)
            self._history.append((self.version, path, "DELETED", one))
            self._updates.notify_all()

    async def lose(self, path: str, name: str) -> None:
        """Delete an object without an event: what happens while nobody is connected."""
        async with self._updates:
            self.version += 1
            del self.objects[path][name]

    def asked(self, path: str, *, watch: bool) -> int:
        """Return how often a path was listed or watched."""
        return sum(at == path and ("watch" in query) is watch for at, query in self.log)

    async def reported(self, line: bytes) -> None:
        """Send a line to all who watch, whatever it is."""
        async with self._updates:
            self.raw_lines.append(line)
            self._updates.notify_all()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                target = head.split(" ", 2)[1]
                parts = urlsplit(target)
                query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                self.log.append((parts.path, query))
                length = re.search(r"(?i)^content-length: (\d+)", head, re.MULTILINE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if self.hangs:
                    await asyncio.sleep(3600)
                if head.startswith("PATCH ") and self._allows(writer, head, parts.path):
                    await self._patch(writer, head, parts.path, body)
                elif not head.startswith("PATCH "):
                    await self._answer(writer, head, parts.path, query)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, head: str, path: str, query: dict[str, str]
    ) -> None:
        if not self._allows(writer, head, path):
            return
        if path not in self.objects:
            _send(writer, 404, b"404 page not found\n", "text/plain")
        elif "watch" in query:
            await self._watch(writer, path, query)
        else:
            _send(writer, 200, json.dumps(self._list(path, query)).encode())

    def _allows(self, writer: asyncio.StreamWriter, head: str, path: str) -> bool:
        """Return whether a request is served; refuse it where not."""
        if f"authorization: bearer {self.token}" not in head.lower():
            _send(writer, 401, _status(401, "Unauthorized", "Unauthorized"))
            return False
        method = head.partition(" ")[0]
        refusal = self.refusals.get(path) or self.refusals.get(method)
        if refusal is not None:
            _send(writer, refusal[0], _status(refusal[0], "Forbidden", refusal[1]))
        return refusal is None

    async def _patch(self, writer: asyncio.StreamWriter, head: str, path: str, body: bytes) -> None:
        await asyncio.sleep(self.patch_s)
        collection, _, name = path.rpartition("/")
        one = self.objects.get(collection, {}).get(name)
        if "content-type: application/merge-patch+json" not in head.lower():
            _send(writer, 415, _status(415, "UnsupportedMediaType", "no patch type"))
        elif one is None:
            _send(writer, 404, _status(404, "NotFound", f'pods "{name}" not found'))
        else:
            given = json.loads(body)["metadata"]["annotations"]
            self.patched.append((name, given))
            self.on_patch()
            annotations = {**(one["metadata"].get("annotations") or {}), **given}
            metadata = {**one["metadata"], "annotations": annotations}
            await self.put(collection, {**one, "metadata": metadata})
            _send(writer, 200, json.dumps(self.objects[collection][name]).encode())

    def _list(self, path: str, query: dict[str, str]) -> Object:
        found = [one for one in self.objects[path].values() if _selects(query, one)]
        at = int(query.get("continue", "0"))
        page = self.page or int(query["limit"])
        metadata: Object = {"resourceVersion": str(self.version)}
        if at + page < len(found):
            metadata |= {"continue": str(at + page), "remainingItemCount": len(found) - at - page}
        return {"kind": "List", "metadata": metadata, "items": found[at : at + page]}

    async def _watch(self, writer: asyncio.StreamWriter, path: str, query: dict[str, str]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        since, raw = int(query["resourceVersion"]), len(self.raw_lines)
        lasts_s = min(int(query["timeoutSeconds"]), self.watch_s)
        deadline = asyncio.get_running_loop().time() + lasts_s
        if since < self.version - self.kept:
            gone = json.loads(_status(410, "Expired", "too old resource version"))
            _chunk(writer, json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
        elif lasts_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._report(writer, path, query, since, raw)
            if self.bookmarks:
                mark = {"kind": "Bookmark", "metadata": {"resourceVersion": str(self.version)}}
                _chunk(writer, json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n")
        writer.write(b"0\r\n\r\n")

    async def _report(
        self,
        writer: asyncio.StreamWriter,
        path: str,
        query: dict[str, str],
        since: int,
        raw: int,
    ) -> None:
        while True:
            async with self._updates:
                for version, at, kind, one in self._history:
                    if version > since and at == path and _selects(query, one):
                        line = json.dumps({"type": kind, "object": one}).encode() + b"\n"
                        # In two pieces: lines do not come as they were written.
                        _chunk(writer, line[:17])
                        _chunk(writer, line[17:])
                    since = max(since, version)
                for line in self.raw_lines[raw:]:
                    _chunk(writer, line)
                raw = len(self.raw_lines)
                await writer.drain()
                await self._updates.wait()


def _selects(query: dict[str, str], one: Object) -> bool:
    metadata = one["metadata"]
    wanted = [text.split("=", 1) for text in query.get("labelSelector", "").split(",") if text]
    if any(metadata.get("labels", {}).get(key) != value for key, value in wanted):
        return False
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return not name or metadata["name"] == name


def _status(code: int, reason: str, message: str) -> bytes:
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
    ).encode()


def _send(
    writer: asyncio.StreamWriter, code: int, body: bytes, kind: str = "application/json"
) -> None:
    head = f"HTTP/1.1 {code} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def kubeconfig(directory: Path, port: int, namespace: str = "llm") -> Path:
    """Write a kubeconfig for the server at `port`, its token in a file; return its path."""
    (directory / "token").write_text(TOKEN)
    path = directory / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": namespace}
    config = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "here", "context": context}],
        "users": [{"name": "u", "user": {"tokenFile": str(directory / "token")}}],
    }
    path.write_text(json.dumps(config))
    return path


def pods_path(namespace: str = "llm") -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def pools_path(namespace: str = "llm") -> str:
    return f"/apis/{V1}/namespaces/{namespace}/inferencepools"


def objectives_path(group: str = OBJECTIVES[0], namespace: str = "llm") -> str:
    return f"/apis/{group}/namespaces/{namespace}/inferenceobjectives"


def pod(name: str, ip: str, *, ready: bool = True, **labels: str) -> Object:
    """Return a pod as the kubelet describes one that runs vLLM."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "llm",
            "uid": f"uid-{name}",
            "labels": {"app": "vllm", "pod-template-hash": "7c9d5", **labels},
            "annotations": {},
            "creationTimestamp": "2026-08-01T10:00:00Z",
        },
        "spec": {
            "containers": [
                {"name": "vllm", "image": "vllm/vllm-openai", "ports": [{"containerPort": 8000}]}
            ],
            "nodeName": "gpu-1",
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastProbeTime": None},
                {"type": "Ready", "status": "True" if ready else "False", "lastProbeTime": None},
            ],
            "qosClass": "Burstable",
        },
    }


def pool(name: str = "chat", *ports: int, app: str = "vllm", **spec: Any) -> Object:
    """Return an InferencePool as the API server defaults it."""
    return {
        "apiVersion": V1,
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "llm", "generation": 1},
        "spec": {
            "selector": {"matchLabels": {"app": app}},
            "targetPorts": [{"number": port} for port in ports or (8000,)],
            "appProtocol": "http",
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": "kvmesh-picker",
                "port": {"number": 9002},
                "failureMode": "FailOpen",
            },
            **spec,
        },
        "status": {"parents": []},
    }


def objective(
    name: str, priority: int | None, of: str = "chat", group: str = OBJECTIVES[0]
) -> Object:
    spec: Object = {"poolRef": {"group": "inference.networking.k8s.io", "name": of}}
    if priority is not None:
        spec["priority"] = priority
    return {
        "apiVersion": group,
        "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": "llm"},
        "spec": spec,
    }


@contextlib.asynccontextmanager
async def running(*paths: str) -> AsyncIterator[tuple[ApiServer, int]]:
    """Run a server that has these collections; without any, all that a pool needs."""
    server = ApiServer()
    server.have(*(paths or (pods_path(), pools_path(), *map(objectives_path, OBJECTIVES))))
    port = await server.start()
    try:
        yield server, port
    finally:
        await server.stop()
