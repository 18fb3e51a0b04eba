"""Variables of the environment that name no setting."""

from collections.abc import Iterator

import pytest
from cyclopts import App

from kvmesh.cli import COMMANDS, app
from kvmesh.errors import ConfigError
from kvmesh.settings.variables import OF_TOOLS, check_variables, known_names

ROLES = ("up", "router", "picker", "meta-router", "worker", "mocker")


def flags(command: App) -> Iterator[str]:
    """Yield the flags of a command and of those below it, as they stand in a variable."""
    if command.default_command is not None:
        for argument in command.assemble_argument_collection().filter_by(parse=True):
            for name in argument.names:
                if name.startswith("--") and not name.startswith("--empty-"):
                    yield name[2:].upper().replace("-", "_")
    for name in command:
        if not name.startswith("-"):
            yield from flags(command[name])


def test_every_flag_of_a_role_is_known() -> None:
    assert {flag for role in ROLES for flag in flags(app[role])} <= known_names()


def test_what_only_tools_take_is_listed_and_no_more() -> None:
    of_roles = known_names() - OF_TOOLS
    taken = {flag for name in COMMANDS for flag in flags(app[name])} - of_roles

    assert {flag for flag in taken if flag.removeprefix("NO_") not in OF_TOOLS} == set()
    assert taken >= OF_TOOLS


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KVMESH_HTP_PORT", "KVMESH_HTTP_PORT"),
        ("KVMESH_BUKET", "KVMESH_BUCKET"),
        ("KVMESH_NATSURL", "KVMESH_NATS_URL"),
    ],
)
def test_a_misspelt_setting_is_rejected_with_the_one_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}': no such setting; is {meant} meant"):
        check_variables({name: "1"})


def test_a_name_like_no_setting_is_named_and_ignored() -> None:
    reported = check_variables({"KVMESH_TEAM_COLOUR": "red", "KVMESH_BUCKET": "b", "PATH": "/bin"})

    assert reported == ["'KVMESH_TEAM_COLOUR': no command has such a setting; it is ignored"]


def test_what_counts_elsewhere_or_kubernetes_makes_of_services_is_not_named() -> None:
    elsewhere = {
        "KVMESH_CONFIG": "f.toml",
        "KVMESH_NO_KV_EVENTS": "1",
        "KVMESH_BLOCK_SIZE": "16",
        "KVMESH_HTTP_PROCESSES": "1",
        "KVMESH_NO_PROGRESS": "1",
    }
    ends = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
        "PORT_80_TCP_PORT": "80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
    }
    services = {f"KVMESH_META_ROUTER_{end}": value for end, value in ends.items()}

    assert check_variables(elsewhere) == []
    assert check_variables(services) == []
