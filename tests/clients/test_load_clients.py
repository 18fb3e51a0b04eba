"""The usual load clients, unchanged, against a router and a meta-router over simulated engines.

Run by `make test-clients`, which installs those that can be.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.clients.client_venv import CLIENTS, ClientVenv
from tests.engines.engine import SGLANG_ENVIRONMENT
from tests.engines.mesh import EngineMesh
from tests.engines.processes import Process, free_ports, kvmesh
from tests.engines.tiny_model import write_tiny_model

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

REQUESTS = 40
BLOCK_SIZE = 16
VLLM_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve`, without the command around it that asks for a package called vllm."""


class Run(msgspec.Struct, frozen=True):
    """How a client is run, and how many requests its output says went well."""

    arguments: Callable[[str, Path, Path], list[str]]
    served: Callable[[str, Path], int]


class Doors(msgspec.Struct, frozen=True):
    """Where the clients go, and the model's directory with its tokenizer."""

    urls: dict[str, str]
    model: Path


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Two simulated engines, their sidecars, two routers and a meta-router."""
    directory = tmp_path_factory.mktemp("clients")
    model = write_tiny_model(directory / "tiny")
    mockers: list[Process] = []
    engines: dict[str, str] = {}
    ports = free_ports(6)
    for number in range(2):
        port, events, replay = ports[3 * number : 3 * number + 3]
        sockets = ("--kv-events-port", str(events), "--kv-replay-port", str(replay))
        named = ("--model", "tiny", "--tokenizer", str(model), "--speedup-ratio", "10")
        arguments = ("mocker", "--http-port", str(port), *sockets, *named)
        mockers.append(kvmesh(*arguments, log=directory / f"mocker-{number}.log"))
        engines[f"w{number}"] = f"http://127.0.0.1:{port}"
    options = ("--tokenizer", str(model), "--kv-cache-block-size", str(BLOCK_SIZE))
    mesh = EngineMesh(directory, engines, options)
    try:
        for mocker in mockers:
            mocker.start()
        mesh.start()
        mesh.wait_for_trust(list(engines))
        yield Doors({"router": mesh.router_urls[0], "meta-router": mesh.front_url}, model)
    finally:
        mesh.stop()
        for mocker in mockers:
            mocker.stop()


def vllm_arguments(url: str, model: Path, out: Path) -> list[str]:
    del out
    return [
        *("-c", VLLM_SERVE, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", url, "--model", "tiny", "--tokenizer", str(model)),
        *("--dataset-name", "random", "--random-input-len", "100", "--random-output-len", "8"),
        *("--num-prompts", str(REQUESTS), "--max-concurrency", "8"),
    ]


def sglang_arguments(url: str, model: Path, out: Path) -> list[str]:
    return [
        *("-m", "sglang.bench_serving", "--backend", "sglang-oai-chat"),
        *("--base-url", url, "--model", "tiny", "--tokenizer", str(model)),
        *("--dataset-name", "random-ids", "--random-input-len", "100", "--random-output-len", "8"),
        *("--num-prompts", str(REQUESTS), "--max-concurrency", "8"),
        *("--output-file", str(out / "sglang.jsonl")),
    ]


def guidellm_arguments(url: str, model: Path, out: Path) -> list[str]:
    return [
        *("-m", "guidellm", "run", "--backend", f"kind=openai_http,target={url},model=tiny"),
        *("--profile", "kind=concurrent,streams=4", "--disable-console"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={model}"),
        *("--data", "kind=synthetic_text,prompt_tokens=100,output_tokens=8"),
        *("--output", f"kind=json,path={out / 'guidellm.json'}"),
    ]


def aiperf_arguments(url: str, model: Path, out: Path) -> list[str]:
    return [
        *("-m", "aiperf", "profile", "--url", url, "--model", "tiny", "--tokenizer", str(model)),
        *("--endpoint-type", "chat", "--streaming", "--concurrency", "4"),
        *("--request-count", str(REQUESTS), "--output-artifact-dir", str(out)),
        *("--synthetic-input-tokens-mean", "100", "--output-tokens-mean", "8", "--ui", "none"),
    ]


def said_to_be_served(output: str, out: Path) -> int:
    del out
    return int(re.findall(r"Successful requests:\s+(\d+)", output)[0])


def guidellm_served(output: str, out: Path) -> int:
    del output
    [made] = msgspec.json.decode((out / "guidellm.json").read_bytes())["benchmarks"]
    totals = made["metrics"]["request_totals"]
    assert totals["errored"] == 0
    served: int = totals["successful"]
    return served


def aiperf_served(output: str, out: Path) -> int:
    del output
    [found] = out.rglob("profile_export_aiperf.json")
    return int(msgspec.json.decode(found.read_bytes())["request_count"]["avg"])


RUNS = {
    "vllm": Run(vllm_arguments, said_to_be_served),
    "sglang": Run(sglang_arguments, said_to_be_served),
    "guidellm": Run(guidellm_arguments, guidellm_served),
    "aiperf": Run(aiperf_arguments, aiperf_served),
}


@pytest.mark.parametrize("door", ["router", "meta-router"])
@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_a_load_client_has_all_its_requests_answered(
    client: ClientVenv, door: str, doors: Doors, tmp_path: Path
) -> None:
    python = client.python()
    if python is None:
        pytest.skip(client.why_not_built())
    wanted = RUNS[client.name]
    # Offline, aiperf looks for tokenizers in the cache of downloads alone, not in a directory.
    quiet = {} if client.name == "aiperf" else {"HF_HUB_OFFLINE": "1"}

    done = subprocess.run(
        [str(python), *wanted.arguments(doors.urls[door], doors.model, tmp_path)],
        env=os.environ | quiet | (SGLANG_ENVIRONMENT if client.name == "sglang" else {}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert wanted.served(done.stdout, tmp_path) == REQUESTS
