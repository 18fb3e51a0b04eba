import tomllib
from pathlib import Path
from typing import get_args

import pytest

from kvmesh.app.ops.config import Role, render_toml

CONFIG = Path(__file__).parents[4] / "config"


@pytest.mark.parametrize("role", get_args(Role))
def test_the_shipped_file_is_what_the_command_prints(role: Role) -> None:
    assert (CONFIG / f"{role}.toml").read_text() == render_toml(role)


@pytest.mark.parametrize("role", get_args(Role))
def test_every_line_is_toml_once_uncommented_and_every_setting_is_explained(role: Role) -> None:
    lines = render_toml(role).splitlines()
    keys = [line for line in lines if line.startswith("#") and not line.startswith("# ")]

    parsed = tomllib.loads("\n".join(line[1:] for line in keys))

    assert len(parsed) == len(keys) > 5
    for position, line in enumerate(lines):
        if line in keys:
            assert lines[position - 1].startswith("# "), line
