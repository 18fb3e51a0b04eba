"""Two real vLLM behind a router alone, and a client of it."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import msgspec

from tests.engines.engine import Engine, vllm_engine
from tests.engines.processes import free_ports
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import Config, write_tiny_model


class Pair(msgspec.Struct):
    engines: Sequence[Engine]
    router: RouterAlone
    client: httpx.Client


@contextlib.contextmanager
def running_pair(
    python: Path, folder: Path, config: Config, *, blocks: int, more: Sequence[str]
) -> Iterator[Pair]:
    """Run both with dummy weights of `config`, and `more` flags, until the router trusts them."""
    model = write_tiny_model(folder / "tiny", config)
    ports = free_ports(6)
    engines = [
        vllm_engine(
            python,
            model,
            (ports[one], ports[2 + one], ports[4 + one]),
            folder / f"vllm-{one}.log",
            blocks=blocks,
            more=more,
        )
        for one in range(2)
    ]
    router = RouterAlone(
        folder,
        {str(one): engine.url for one, engine in enumerate(engines)},
        ("--tokenizer", str(model)),
    )
    with contextlib.ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.stop)
            engine.start()
        for engine in engines:
            engine.wait()
        stack.callback(router.stop)
        router.start()
        router.wait_for_trust()
        client = httpx.Client(
            base_url=router.router_urls[0],
            timeout=1700,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        yield Pair(engines, router, stack.enter_context(client))
