import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from kvmesh import entries
from kvmesh.cli import COMMANDS, OF_LAB
from kvmesh_lab import entries as of_lab

LOGS = """
import sys
from kvmesh.entries import load_logs
{before}
load_logs()
import structlog
print(structlog.dev.rich is None, "rich" in sys.modules)
import rich
"""


@pytest.mark.parametrize("name", [name for name, (place, _) in COMMANDS.items() if ":" in place])
def test_each_entry_says_what_the_command_line_says(name: str) -> None:
    place, text = COMMANDS[name]
    module, _, function_name = place.partition(":")
    package = of_lab.__package__ if name in OF_LAB else entries.__package__
    function = getattr(import_module(f"{package}.{module}"), function_name)

    assert inspect.getdoc(function) == text


@pytest.mark.parametrize(
    ("before", "reported"),
    [
        ("", "True False"),
        ("import rich", "False True"),
        ("import structlog", "False True"),
    ],
    ids=["nothing", "rich", "structlog"],
)
def test_logs_are_loaded_without_rich_unless_somebody_has_it(before: str, reported: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGS.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout.strip() == reported
