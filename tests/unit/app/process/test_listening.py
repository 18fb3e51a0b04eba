import errno
import socket

import pytest

from kvmesh.app.process.listening import naming
from kvmesh.errors import ConfigError, TransportError
from kvmesh.transport.http.wire.sockets import listen


def test_a_taken_port_names_the_setting_of_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught, naming("--http-port", "--http-host"):
            listen("127.0.0.1", port)

    said = str(caught.value)
    assert said.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert said.endswith("or name another port: --http-port")


def test_an_address_of_another_machine_names_the_setting_of_the_address() -> None:
    remedy = r"name an address of this machine: --http-host$"
    with pytest.raises(ConfigError, match=remedy), naming("--http-port", "--http-host"):
        listen("192.0.2.1", 0)


def test_a_port_that_needs_a_privilege_says_so() -> None:
    remedy = r"ports below 1024 need a privilege; .*: --port"
    with pytest.raises(ConfigError, match=remedy), naming("--port", "--host"):
        raise TransportError("no") from OSError(errno.EACCES, "Permission denied")


def test_what_names_no_cause_is_about_the_address() -> None:
    with pytest.raises(ConfigError, match=r"--host$"), naming("--port", "--host"):
        raise TransportError("no")
