import errno
import resource
import socket

import pytest

from kvmesh.errors import TransportError
from kvmesh.transport.http.wire.sockets import (
    announced_host,
    connections_within,
    listen,
    raise_open_files_limit,
)


def test_accepted_connections_have_no_nagle_and_probe_their_peer() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
def test_a_listener_on_every_address_is_announced_by_one_that_reaches_it(host: str) -> None:
    (listener, *others) = listen(host, 0)
    try:
        announced = announced_host(host)
        assert announced not in {"0.0.0.0", "", "::"}
        socket.create_connection((announced, listener.getsockname()[1]), timeout=5).close()
    finally:
        for sock in (listener, *others):
            sock.close()


def test_a_machine_without_a_route_is_announced_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)

    assert announced_host("::") == socket.gethostname()
    assert announced_host("10.1.2.3") == "10.1.2.3"


def test_a_taken_port_is_named() -> None:
    (first,) = listen("127.0.0.1", 0)
    port = first.getsockname()[1]

    with first, pytest.raises(TransportError, match=f"127.0.0.1:{port}"):
        listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(TransportError, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))

        assert raise_open_files_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("open_files", "connections"), [(1024, 448), (131, 1), (3, 1)])
def test_a_connection_costs_two_open_files(open_files: int, connections: int) -> None:
    assert connections_within(open_files) == connections


def test_without_a_limit_of_open_files_connections_have_none_either() -> None:
    assert connections_within(resource.RLIM_INFINITY) > 1 << 30
