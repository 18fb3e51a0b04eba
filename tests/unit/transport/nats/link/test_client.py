import ast
import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from benchmarks.house.tree import SourceFile, read_tree
from kvmesh.observe import get_logger
from kvmesh.transport.nats.link.client import PRIVATE, NatsClient
from kvmesh.transport.nats.trust.signing import Signing
from tests.contract.next_nats import beyond_the_pin

REPOSITORY = Path(__file__).parents[5]
ADAPTER = "kvmesh.transport.nats.link.client"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(files: list[SourceFile]) -> set[str]:
    """Return the private names that classes and instances of a package have."""
    found: set[str] = set()
    for file in files:
        for node in ast.walk(file.syntax):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ClassDef):
                found.update(
                    one.name
                    for one in node.body
                    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                )
    return set(filter(is_private, found))


def imported_from_nats(file: SourceFile) -> set[str]:
    return {
        one.asname or one.name
        for node in ast.walk(file.syntax)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nats"
        for one in node.names
    }


def used_names(file: SourceFile, names: set[str]) -> Iterator[str]:
    """Yield those of `names` that a file uses of something that is not its own.

    What a class says of itself is its own unless it is made of one of nats-py's.
    """
    bases = imported_from_nats(file)
    own: set[ast.AST] = set()
    for node in ast.walk(file.syntax):
        if isinstance(node, ast.ClassDef):
            if bases.isdisjoint(ast.unparse(base) for base in node.bases):
                own.update(ast.walk(node))
            else:
                yield from {str(getattr(one, "name", "")) for one in node.body} & names
    for node in ast.walk(file.syntax):
        if isinstance(node, ast.Attribute) and node.attr in names:
            of_itself = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not (of_itself and node in own):
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "setattr"}:
            yield from (
                str(one.value)
                for one in node.args
                if isinstance(one, ast.Constant) and one.value in names
            )


def test_only_the_adapter_uses_private_names_of_nats_py_and_it_lists_each() -> None:
    names = private_names(read_tree(Path(nats.__file__).parent))
    ours = read_tree(REPOSITORY / "kvmesh")
    near = [file for file in ours if ".nats" in file.module or imported_from_nats(file)]

    found = {file.module: sorted({*used_names(file, names)}) for file in near}

    assert {module: used for module, used in found.items() if used} == {ADAPTER: sorted(PRIVATE)}


def test_a_private_name_in_another_file_would_be_found() -> None:
    text = (
        "from nats.aio.client import Client\n"
        "class Ours(Client):\n"
        "    def _process_msg(self): self._pending = getattr(self, '_sid')\n"
        "class Other:\n"
        "    def look(self, client): self._err = client._subs\n"
    )
    file = SourceFile(Path("x.py"), "kvmesh.x", text, ast.parse(text))
    names = {"_process_msg", "_pending", "_sid", "_err", "_subs"}

    assert {*used_names(file, names)} == names - {"_err"}


def test_this_nats_py_has_every_private_name_in_the_form_that_is_relied_upon() -> None:
    client = Client()

    def parameters(name: str) -> list[str]:
        return list(inspect.signature(getattr(client, name)).parameters)

    assert parameters("_process_msg") == ["sid", "subject", "reply", "data", "headers"]
    assert parameters("_process_err") == ["err_msg"]
    assert parameters("_process_op_err") == ["e"]
    assert parameters("_flush_pending") == ["force_flush"]
    assert vars(client)["_pending"] == []
    assert vars(client)["_pending_data_size"] == client.pending_data_size == 0
    assert vars(client)["_transport"] is None
    assert vars(Subscription(client, id=7))["_id"] == 7


def test_the_next_minor_version_is_what_the_pin_leaves_out() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()

    found = beyond_the_pin(text)

    major, minor = map(int, version("nats-py").split(".")[:2])
    assert found == f"nats-py>={major}.{minor + 1}.dev0"
    with pytest.raises(ValueError, match="pins no minor version"):
        beyond_the_pin(text.replace(f",<{major}.{minor + 1}", f",<{major + 1}"))


class Peer:
    """A server that says PONG when it is told to."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.pinged = asyncio.Event()
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.published = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(b'INFO {"server_id":"S1","max_payload":1048576,"headers":true}\r\n')
        while line := await reader.readline():
            self.published += line.startswith(b"PUB ")
            if line == b"PING\r\n":
                self.pinged.set()
                await self.answers.wait()
                writer.write(b"PONG\r\n")


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    found = Peer()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    found.answers.set()
    for writer in found.writers:
        writer.close()
    server.close()


@pytest.fixture
async def client(peer: Peer) -> AsyncIterator[NatsClient]:
    async def on_error(error: Exception) -> None:
        raise AssertionError(error)

    client = NatsClient(Signing(get_logger()))
    servers = [f"nats://127.0.0.1:{peer.port}"]
    await client.connect(servers=servers, pending_size=1000, error_cb=on_error)
    yield client
    peer.answers.set()
    await client.close()


async def test_a_pong_that_comes_late_does_not_end_the_read_loop(
    peer: Peer, client: NatsClient
) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    number = await client.listen(
        "a", lambda _subject, _reply, data, _raw: received.set_result(data)
    )
    peer.answers.clear()
    peer.pinged.clear()

    with pytest.raises(nats.errors.FlushTimeoutError):
        await client.flush(timeout=0.05)  # type: ignore[arg-type]
    await peer.pinged.wait()
    peer.answers.set()
    await client.flush()
    peer.writers[0].write(b"MSG a %d 2\r\nhi\r\n" % number)

    assert await asyncio.wait_for(received, 5) == b"hi"


async def test_what_the_server_says_of_itself_is_kept(client: NatsClient) -> None:
    assert client.server_fact("server_id") == "S1"
    assert client.server_fact("cluster") == ""


async def test_a_flush_that_is_under_way_when_the_client_closes_ends(
    peer: Peer, client: NatsClient
) -> None:
    peer.answers.clear()
    flushing = asyncio.ensure_future(client.flush(timeout=30))
    await peer.pinged.wait()

    flushing.cancel()
    await client.close()

    with pytest.raises(asyncio.CancelledError):
        await flushing


async def test_what_does_not_fit_into_the_buffer_is_refused_at_once(client: NatsClient) -> None:
    client.publish_nowait("a", b"x" * 400)

    with pytest.raises(nats.errors.OutboundBufferLimitError):
        client.publish_nowait("a", b"x" * 400)


async def test_what_is_published_in_one_turn_is_written_together_in_the_next(
    peer: Peer, client: NatsClient
) -> None:
    for _ in range(3):
        client.publish_nowait("a", b"x")
    assert client.pending_data_size > 0

    await asyncio.sleep(0)

    assert client.pending_data_size == 0
    await client.flush()
    assert peer.published == 3


async def test_a_socket_that_takes_no_more_leaves_the_rest_to_be_refused(
    peer: Peer, client: NatsClient
) -> None:
    peer.answers.clear()
    flushing = asyncio.ensure_future(client.flush(timeout=30))
    await peer.pinged.wait()
    sent, refused = 0, False

    while not refused and sent < 100_000:
        try:
            client.publish_nowait("a", b"x" * 300)
            sent += 1
        except nats.errors.OutboundBufferLimitError:
            refused = True
        await asyncio.sleep(0)

    assert refused
    peer.answers.set()
    await flushing
    await client.flush()
    assert peer.published == sent


async def test_a_subscription_may_be_ended_twice_and_after_the_end(client: NatsClient) -> None:
    number = await client.listen("a", lambda *_: None)
    subscription = await client.subscribe("b")

    await client.unlisten(number)
    await client.unlisten(number)
    await client.end(subscription)
    await client.end(subscription)
    await client.close()
    await client.end(subscription)
