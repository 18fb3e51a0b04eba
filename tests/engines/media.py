"""Routers over a real vLLM that sees or hears, and chats for it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.engines.engine import VISION_ENVIRONMENT, VLLM_BLOCK_SIZE, vllm_engine
from tests.engines.processes import free_ports
from tests.engines.reuse.alone import RouterAlone
from tests.engines.traffic import Comparison, ask

BLOCKS = 400
QUESTION = {"type": "text", "text": "What is in this picture, and what of it did you expect? " * 4}


@contextlib.contextmanager
def routed(python: Path, directory: Path, model: Path, count: int) -> Iterator[list[RouterAlone]]:
    """Run so many routers over one engine of `model`, which tells its names of media."""
    port, events, replay = free_ports(3)
    log, environment = directory / "vllm.log", VISION_ENVIRONMENT
    ports, more = (port, events, replay), ("--enable-scale-out",)
    engine = vllm_engine(
        python, model, ports, log, blocks=BLOCKS, more=more, environment=environment
    )
    tokenizer = ("--tokenizer", str(model), "--kv-cache-block-size", str(VLLM_BLOCK_SIZE))
    made: list[RouterAlone] = []
    for number in range(count):
        (place := directory / f"router-{number}").mkdir()
        made.append(RouterAlone(place, {"eyes": engine.url}, tokenizer))
    try:
        engine.start()
        engine.wait()
        for router in made:
            router.start()
            router.wait_for_trust()
        yield made
    finally:
        for router in made:
            router.stop()
        engine.stop()


def sent(
    router: RouterAlone, *parts: dict[str, Any], turns: int = 0, api: str = "chat/completions"
) -> Comparison:
    """Send a chat of these parts and so many turns behind them."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [*parts]}]
    for number in range(turns):
        more = f"And what of turn {number}, which says something else again? " * 4
        messages.append({"role": "assistant", "content": "A picture."})
        messages.append({"role": "user", "content": more})
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "temperature": 0.0}
    body["messages"] = messages
    if api == "responses":
        messages[0]["content"] = [as_input(part) for part in parts]
        body |= {"input": body.pop("messages"), "max_output_tokens": body.pop("max_tokens")}
    elif api == "messages":
        messages[0]["content"] = [as_block(part) for part in parts]
    router.settle()
    made = ask(router, router.front_url, ("media", f"/v1/{api}", body), VLLM_BLOCK_SIZE)
    router.settle()
    return made


def as_input(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part as the responses API has it."""
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    return {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}


def as_block(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part as Anthropic's messages have it."""
    if part["type"] == "text":
        return part
    data = part["image_url"]["url"].partition(",")[2]
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
