"""The compose file of a stand-alone Envoy with pickers: what Docker or Envoy would refuse."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvmesh.app.picker.envoy_bootstrap import encode
from kvmesh.app.picker.envoy_options import EXAMPLE
from kvmesh.app.picker.envoy_server import find_envoy
from kvmesh.cli import COMMANDS

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[3] / "deploy/compose"
FILE = FOLDER / "gateway.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]


def test_envoys_configuration_is_what_the_command_prints() -> None:
    assert (FOLDER / "envoy.json").read_bytes() == encode(EXAMPLE) + b"\n"


def test_envoy_takes_the_configuration() -> None:
    config = FOLDER / "envoy.json"
    argv = [str(find_envoy()), "--mode", "validate", "--config-path", str(config)]

    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_envoy_is_told_the_pickers_and_engines_that_there_are() -> None:
    reported = {address.host for address in (*EXAMPLE.pickers, *EXAMPLE.endpoints)}

    assert reported == {name for name in SERVICES if re.match("picker|engine", name)}
    assert all(one["command"][0] in COMMANDS for one in SERVICES.values() if is_ours(one))


def is_ours(service: dict[str, Any]) -> bool:
    return "KVMESH_IMAGE" in service["image"]
