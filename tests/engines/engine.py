"""One real engine on CPU, publishing KV events, with so small a cache that it must evict."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.engines.processes import Process, eventually
from tests.engines.tiny_model import CONTEXT_TOKENS

VLLM_BLOCK_SIZE = 32
"""Tokens a block; CPU attention wants a multiple of 32."""

SGLANG_BLOCK_SIZE = 16

START_TIMEOUT_S = 480.0
STUBS = Path(__file__).parent / "sglang_stubs"
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
VLLM_ENVIRONMENT = QUIET | {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1",
}
VISION_ENVIRONMENT = VLLM_ENVIRONMENT | {"PYTHONPATH": str(STUBS.parent / "vllm_stubs")}
"""For a vLLM that sees pictures."""

AUDIO_ENVIRONMENT = VLLM_ENVIRONMENT | {"PYTHONPATH": str(STUBS.parent / "audio_stubs")}
"""For a vLLM that hears."""

SGLANG_ENVIRONMENT = QUIET | {"PYTHONPATH": str(STUBS), "SGLANG_USE_CPU_ENGINE": "1"}


class Engine:
    """A server at `url`; `kill` and `start` make it a new engine on the same ports."""

    def __init__(self, url: str, ready_path: str, process: Process) -> None:
        self.url = url
        self.process = process
        self._ready = url + ready_path

    def start(self) -> None:
        self.process.start()

    def wait(self) -> None:
        """Return when it answers; fails with its log when it ends instead."""

        def healthy() -> bool:
            self.process.check()
            return httpx.get(self._ready, timeout=2.0).status_code == 200

        eventually(healthy, f"{self.url} is healthy", within_s=START_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()


def vllm_engine(
    python: Path,
    model: Path,
    ports: tuple[int, int, int],
    log: Path,
    *,
    blocks: int,
    block_size: int = VLLM_BLOCK_SIZE,
    ranks: int = 1,
    more: Sequence[str] = (),
    environment: Mapping[str, str] = VLLM_ENVIRONMENT,
) -> Engine:
    """Return a vLLM; rank r of `ranks` publishes on the second port + r, replays on the third + r.

    It keeps one of its `blocks` for itself.
    """
    port, events, replay = ports
    argv = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "tiny", "--load-format", "dummy"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
        *("--max-model-len", str(CONTEXT_TOKENS), "--block-size", str(block_size)),
        *("--num-gpu-blocks-override", str(blocks), "--enforce-eager"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--data-parallel-size", str(ranks)),
        *("--kv-events-config", events_config(events, replay, enable_kv_cache_events=True)),
        *more,
    ]
    return Engine(f"http://127.0.0.1:{port}", "/health", Process(argv, log, environment))


def sglang_engine(
    python: Path, model: Path, ports: tuple[int, int, int], log: Path, *, blocks: int
) -> Engine:
    """Return an SGLang; its load stream is on the port behind its events'."""
    port, events, replay = ports
    argv = [
        *(str(python), "-m", "sglang.launch_server"),
        *("--model-path", str(model), "--served-model-name", "tiny", "--load-format", "dummy"),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "bfloat16"),
        *("--attention-backend", "torch_native", "--disable-cuda-graph", "--sleep-on-idle"),
        *("--page-size", str(SGLANG_BLOCK_SIZE), "--mem-fraction-static", "0.1"),
        *("--max-total-tokens", str(blocks * SGLANG_BLOCK_SIZE), "--skip-server-warmup"),
        *("--enable-metrics", "--enable-cache-report", "--load-publish-endpoint", "auto"),
        *("--kv-events-config", events_config(events, replay)),
    ]
    return Engine(f"http://127.0.0.1:{port}", "/ready", Process(argv, log, SGLANG_ENVIRONMENT))


def events_config(events: int, replay: int, **more: bool) -> str:
    """Return the JSON of --kv-events-config."""
    sockets = {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}
    return json.dumps({"publisher": "zmq", **sockets, **more})
