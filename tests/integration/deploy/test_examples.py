"""Every file in examples/ runs as it stands, in a process of its own."""

import asyncio
import sys
from pathlib import Path

import pytest
import yaml

from kvmesh.settings.roles import UpSettings
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[3] / "examples"
EXPECTED = {
    "agents.py": "tester   turn 2",
    "chat.py": "blocks cached",
    "custom_router.py": "second w",
    "formulas.py": "overlap-load: w2",
    "index_library.py": "restored   {'worker-1': 2, 'worker-0': 3} True",
    "my_cost.py": "= my_cost(block_size=16, prompt_tokens=160, overlap_blocks=10, ",
    "seed_demo.py": "blocks cached  Any jobs?",
    "ten_lines.py": "asyncio w",
    "router_library.py": "chosen     w1 8 of 10 blocks cached",
}
OF_A_MESH = {
    *("custom_router_service.py", "follow_mesh.py", "register_engine.py"),
    "usage_biller.py",
}
"""Those need NATS; `tests/integration/mesh/test_followers.py` runs them, and the last one
`tests/integration/nats/test_usage_record.py`.
"""


def test_every_example_is_run_here_or_against_a_mesh() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *OF_A_MESH}


@pytest.mark.parametrize("name", EXPECTED)
async def test_an_example_runs(name: str) -> None:
    async with (
        mockers() as (engine,),
        live_router.router([engine.url]) as url,
    ):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLES / name), url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()

    assert process.returncode == 0, err.decode()
    assert EXPECTED[name] in out.decode()
    assert not err


def test_every_file_is_listed_on_the_examples_page() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [path.relative_to(EXAMPLES) for path in EXAMPLES.glob("**/*.*") if path.is_file()]

    listed = {str(path) for path in files if f"]({path})" in page}
    assert listed == {str(path) for path in files if path.suffix in {".py", ".yaml", ".jsonl"}}


def test_the_configurations_of_clients_lead_to_kvmesh_up() -> None:
    proxy = yaml.safe_load((EXAMPLES / "clients" / "litellm.yaml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((EXAMPLES / "clients" / "open-webui.yaml").read_text(encoding="utf-8"))
    url = f"http://127.0.0.1:{UpSettings.http_port}/v1"

    (model,) = proxy["model_list"]
    assert model["litellm_params"]["api_base"] == url
    assert model["litellm_params"]["model"] == f"openai/{UpSettings.model}"
    assert compose["services"]["open-webui"]["environment"]["OPENAI_API_BASE_URL"] == url
