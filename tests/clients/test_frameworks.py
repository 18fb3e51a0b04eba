"""The frameworks of examples/clients/, unchanged, in front of a router. By `make test-clients`."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.clients.client_venv import FRAMEWORKS, ClientVenv
from tests.integration.support import live_router

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "clients"
LAST_LINE = {"langchain": " blocks cached", "litellm": "streamed "}


@pytest.mark.parametrize("venv", FRAMEWORKS, ids=lambda one: one.name)
async def test_the_example_of_a_framework_runs_and_its_second_chat_is_cached(
    venv: ClientVenv,
) -> None:
    python = venv.python()
    if python is None:
        pytest.skip(venv.why_not_built())
    engine = Mocker(
        MockerOptions(port=0, kv_events_port=0, replay_port=0, timing_profile="instant")
    )
    await engine.start()
    async with live_router.router([engine.url]) as url:
        done = await asyncio.to_thread(
            lambda: subprocess.run(
                [str(python), str(EXAMPLES / f"{venv.name}_chat.py"), url],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        )
    await engine.stop()

    assert done.returncode == 0, done.stderr
    first, second, *_, last = done.stdout.splitlines()
    assert first.split()[1] == "0"
    assert int(second.split()[1]) > 100
    assert LAST_LINE[venv.name] in last
