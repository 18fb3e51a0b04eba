import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from kvmesh.app.ops import health
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer


@pytest.fixture
async def port() -> AsyncIterator[int]:
    def answer(exchange: Exchange) -> None:
        well = exchange.request.path == "/health"
        exchange.respond(200 if well else 503, b"alive" if well else b"no ready replica")

    server = HttpServer(answer)
    await server.start("127.0.0.1", 0)
    yield server.port
    await server.close()


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"KVMESH_HTTP_HOST": "0.0.0.0", "KVMESH_HTTP_PORT": "9400"}, "http://127.0.0.1:9400"),
        ({"KVMESH_HTTP_HOST": "::"}, "http://[::1]:8000"),
        ({"KVMESH_HTTP_HOST": "10.0.0.3", "KVMESH_TLS_CERT": "c"}, "https://10.0.0.3:8000"),
    ],
)
def test_it_asks_where_the_process_with_its_variables_listens(
    variables: dict[str, str], url: str
) -> None:
    assert health.own_url(variables) == url


def test_a_process_without_a_port_cannot_be_asked() -> None:
    with pytest.raises(ValueError, match="KVMESH_HTTP_PORT is 0"):
        health.own_url({"KVMESH_HTTP_PORT": "0"})


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://"])
def test_what_is_no_url_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="write http://host:port"):
        health.why_not(url, "/health", 1.0)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ([], ("", False)),
        (["http://a", "--ready"], ("http://a", True)),
        (["--ready", "--ready"], None),
        (["http://a", "http://b"], None),
        (["--help"], None),
        (["--timeout-s", "3"], None),
    ],
)
def test_only_plain_checks_are_read_without_the_command_line(
    words: list[str], read: tuple[str, bool] | None
) -> None:
    assert health.read_words(words) == read


async def run(*words: str, **variables: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", "health", *words),
        env=variables,
        stderr=subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_its_exit_code_says_whether_the_process_answers(port: int) -> None:
    url = f"http://127.0.0.1:{port}"

    assert await run(KVMESH_HTTP_PORT=str(port)) == (0, "")
    assert await run(f"{url}/health?deep=1", "--timeout-s", "20") == (0, "")
    assert await run(url, "--ready") == (1, f"kvmesh: {url}/ready: 503 no ready replica\n")
    code, said = await run("http://127.0.0.1:1")
    assert (code, said.startswith("kvmesh: http://127.0.0.1:1/health: ")) == (1, True)
    assert await run(KVMESH_HTTP_PORT="0") == (
        1,
        "kvmesh: KVMESH_HTTP_PORT is 0: this process has no port to ask\n",
    )


def test_a_health_check_does_not_load_the_command_line() -> None:
    program = (
        "import sys; sys.argv[1:] = ['health', 'http://127.0.0.1:1'];"
        "import kvmesh.__main__ as m\n"
        "try: m.main()\n"
        "except SystemExit as end: print(end.code, 'cyclopts' in sys.modules)"
    )
    argv = [sys.executable, "-c", program]

    done = subprocess.run(argv, capture_output=True, text=True, check=True)

    assert done.stdout == "1 False\n"
