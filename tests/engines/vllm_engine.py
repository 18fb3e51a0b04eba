"""One real vLLM on CPU, publishing KV events, with so few blocks that it must evict."""

import json
from pathlib import Path

import httpx

from tests.engines.processes import Process, eventually
from tests.engines.tiny_model import CONTEXT_TOKENS

BLOCK_SIZE = 32
"""Tokens a block; CPU attention wants a multiple of 32."""

START_TIMEOUT_S = 480.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1",
}


class VllmEngine:
    """A server at `url`; `kill` and `start` make it a new engine on the same ports.

    Rank r of `ranks` publishes on `events_port` + r and replays on `replay_port` + r.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        ports: tuple[int, int, int],
        log: Path,
        *,
        blocks: int,
        ranks: int = 1,
    ) -> None:
        port, self.events_port, self.replay_port = ports
        self.url = f"http://127.0.0.1:{port}"
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
        }
        argv = [
            *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", "tiny", "--load-format", "dummy"),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
            *("--max-model-len", str(CONTEXT_TOKENS), "--block-size", str(BLOCK_SIZE)),
            *("--num-gpu-blocks-override", str(blocks), "--enforce-eager"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--data-parallel-size", str(ranks), "--kv-events-config", json.dumps(events)),
        ]
        self.process = Process(argv, log, ENVIRONMENT)

    def start(self) -> None:
        self.process.start()

    def wait(self) -> None:
        """Return when it answers; fails with its log when it ends instead."""

        def healthy() -> bool:
            self.process.check()
            return httpx.get(f"{self.url}/health", timeout=2.0).status_code == 200

        eventually(healthy, f"{self.url} is healthy", within_s=START_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()
