"""The apps that real engines build, without a model: each of their routes has a row."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvmesh.core.admission.paths import find_row
from tests.engines.engine import SGLANG_ENVIRONMENT, VLLM_ENVIRONMENT

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

TOLD = """
import json

def flat(routes):
    for one in routes:
        if (router := getattr(one, "original_router", None)) is not None:
            yield from flat(router.routes)
        else:
            yield from ((verb, one.path) for verb in getattr(one, "methods", None) or ["GET"])

print(json.dumps(sorted(set(flat(app.routes)))))
"""
SGLANG_APP = "from sglang.srt.entrypoints.http_server import app" + TOLD
VLLM_APP = (
    """
from typing import get_args
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.tasks import SupportedTask
from vllm.utils.argparse_utils import FlexibleArgumentParser
args = make_arg_parser(FlexibleArgumentParser()).parse_args([])
tasks = get_args(SupportedTask)
app = build_app(args, tuple(tasks))
"""
    + TOLD
)


def served(python: Path, code: str, environment: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the methods and paths of the app that `code` builds."""
    env = os.environ | environment | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    done = subprocess.run(
        [str(python), "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {(method, path) for method, path in json.loads(done.stdout.splitlines()[-1])}


def without_row(routes: set[tuple[str, str]], kind: str) -> list[tuple[str, str]]:
    """Return the routes whose path has no row for that kind of engine."""
    rows = {(method, path): find_row(method, path) for method, path in routes}
    return sorted(one for one, row in rows.items() if row is None or kind not in row.engines)


def test_every_route_of_vllm_has_a_row(vllm: Path) -> None:
    routes = served(vllm, VLLM_APP, VLLM_ENVIRONMENT)

    assert len(routes) > 60
    assert without_row(routes, "v") == []


def test_every_route_of_sglang_has_a_row(sglang: Path) -> None:
    routes = served(sglang, SGLANG_APP, SGLANG_ENVIRONMENT)

    assert len(routes) > 100
    assert without_row(routes, "s") == []
