"""What an engine's event source and its watchers tell actors."""

from typing import Annotated

from msgspec import Meta

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import WorkerHeartbeat, WorkerLoad
from kvmesh.bounds import Count, Seconds
from kvmesh.core.blocks.events import HASH_BYTES, WorkerId, WorkerName
from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.core.engines.kv_events.regaining import MOST_HASHES, CacheHit

PromptHashes = Annotated[bytes, Meta(max_length=MOST_HASHES * HASH_BYTES)]


class EnginePayload(Message, frozen=True):
    """One batch as the engine published it, each once and in the engine's order.

    `seq` is its number there, -1 where nobody says.
    """

    data: bytes
    seq: int = -1


class EngineRestarted(Message, frozen=True):
    """The engine started anew: its cache is empty, its history begins again."""


class EngineLost(Message, frozen=True):
    """Batches of the engine are lost for good: what it holds is unknown."""

    reason: str


class EngineCaughtUp(Message, frozen=True):
    """All that the engine has published so far was passed on, or is lost and said so."""


class EngineConnected(Message, frozen=True):
    """The connection to the engine's event publisher was made, or lost."""

    connected: bool


class EngineServed(Message, frozen=True):
    """The engine answered a request with at least one block that it did not hold before."""


class PromptServed(Message, frozen=True, tag="prompt-served"):
    """The engine of `worker` found the first `cached` blocks of a prompt in its cache, and computed
    the next one: `hashes` are those of all of them, packed. It was sent `lasted_s` ago.

    Sent as `Resync` is, while a worker's heartbeats say that it wants answers.
    """

    worker: WorkerName
    hashes: PromptHashes
    cached: Count
    lasted_s: Seconds

    def answer(self) -> CacheHit:
        """Return it as the core takes it."""
        whole = len(self.hashes) - len(self.hashes) % HASH_BYTES
        return CacheHit(unpack_hashes(self.hashes[:whole]), self.cached, self.lasted_s)


class CacheEmptied(Message, frozen=True, tag="cache-emptied"):
    """The engine of `worker` was told to forget its cache, and did; its own event says so only with
    its next step. What else was published before that follows, and changes nothing. Sent as
    `Resync` is.
    """

    worker: WorkerName


class EngineAnswers(Message, frozen=True):
    """Whether the sidecar's engine answers its health checks."""

    answering: bool


class EngineServes(Message, frozen=True):
    """The models that the engine serves now; `adapters` are those that are LoRA adapters, `weights`
    is the version of its weights, "" where it does not tell.
    """

    models: tuple[str, ...]
    adapters: tuple[str, ...] = ()
    weights: str = ""


class EngineSilent(Message, frozen=True):
    """The engine of `worker` does not answer. `slow`: it may yet, it took the question. `status`:
    it answered with that, not with the models it serves.

    `beat` is what is known from the configuration of one that never answered.
    """

    worker: WorkerId
    slow: bool = False
    status: int = 0
    beat: WorkerHeartbeat | None = None


class EngineLoad(Message, frozen=True):
    """What the engine last reported of its load."""

    load: WorkerLoad
