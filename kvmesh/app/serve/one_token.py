"""Requests that a router sends of its own accord: prompts of clients again, for one token."""

from typing import Final, NamedTuple

import msgspec

from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.handshake import one_token
from kvmesh.core.engines.sse import find_usage
from kvmesh.errors import CodecError, TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

ANSWER_S: Final = 30.0

PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages"})
"""Whose bodies name the length of the answer `max_tokens`, and the rest of it the prompt."""

_OVERHEAD: Final = 512
"""Bytes of what holds a kept prompt together."""

_PASSED_ON: Final = frozenset({b"authorization", b"anthropic-version", b"x-api-key"})


class SentPrompt(NamedTuple):
    """A request as it was sent: salts of tenants and keys included."""

    path: str
    body: bytes
    headers: Headers


def sent_prompt(asked: Request) -> SentPrompt | None:
    """Return what to send again; None for what cannot be. The body is shared, not copied."""
    if asked.path not in PATHS or asked.method != "POST":
        return None
    headers = tuple(one for one in asked.headers if one[0] in _PASSED_ON)
    return SentPrompt(asked.path, asked.body, headers)


def kept_size(body: bytes, hashes: Hashes) -> int:
    """Return about how many bytes a prompt takes that is kept to be sent again."""
    return len(body) + HASH_BYTES * hashes.blocks + _OVERHEAD


class OneTokenRequests:
    """Sends prompts again, counted for nobody. `name` begins their ids, and names them in logs."""

    def __init__(self, pool: UpstreamPool, name: str) -> None:
        self._pool = pool
        self._name = name
        self._sent = 0

    async def send(self, prompt: SentPrompt, target: Target) -> int | None:
        """Return how many tokens the engine computed, 0 if it does not say; None: it did not."""
        self._sent += 1
        request_id = b"%s-%d" % (self._name.encode(), self._sent)
        headers = (*prompt.headers, *target.headers, (b"x-request-id", request_id))
        log = get_logger().bind(kind=self._name, worker=target.worker)
        try:
            status, answer = await fetch(
                self._pool,
                target.origin,
                prompt.path,
                timeout_s=ANSWER_S,
                headers=headers,
                json=msgspec.json.encode(one_token(prompt.body)),
            )
        except (CodecError, TransportError) as error:
            log.debug("prompt not sent again", error=str(error))
            return None
        if status != HTTP_OK:
            log.debug("prompt not sent again", status=status)
            return None
        usage = find_usage(answer)
        if usage is None or usage.cached_tokens is None:
            return 0
        log.debug("prompt sent again", cached_tokens=usage.cached_tokens)
        return max(0, usage.prompt_tokens - usage.cached_tokens)
