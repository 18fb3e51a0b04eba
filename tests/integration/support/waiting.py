"""Waits for what happens behind sockets or in other processes, which tell nobody."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import httpx

POLL_S = 0.02
WITHIN_S = 60.0


async def until(check: Callable[[], Any], within_s: float = WITHIN_S, what: str = "") -> Any:
    """Return the first true value of `check`, or of what it awaits; where nobody answers there is
    none. Fails with the last value.
    """
    loop, last = asyncio.get_running_loop(), None
    deadline_s = loop.time() + within_s
    while True:
        with contextlib.suppress(httpx.TransportError):
            last = check()
            if inspect.isawaitable(last):
                last = await last
            if last:
                return last
        assert loop.time() < deadline_s, f"not within {within_s:g} s: {what or check}: {last}"
        await asyncio.sleep(POLL_S)


async def seen(
    client: httpx.AsyncClient,
    path: str,
    holds: Callable[[Any], object],
    within_s: float = WITHIN_S,
) -> Any:
    """Return the JSON at `path` as soon as `holds` is true of it."""
    last: Any = None

    async def look() -> bool:
        nonlocal last
        last = (await client.get(path)).json()
        return bool(holds(last))

    try:
        await until(look, within_s)
    except AssertionError:
        raise AssertionError(f"not within {within_s:g} s: {path}: {last}") from None
    return last


async def until_ready(client: httpx.AsyncClient, url: str = "", path: str = "/ready") -> None:
    """Wait until a process says that it serves."""

    async def ready() -> bool:
        return (await client.get(f"{url}{path}")).status_code == httpx.codes.OK

    await until(ready, 120.0, f"{url}{path}")
