"""What an engine's event source and its watchers tell actors."""

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import WorkerLoad
from kvmesh.core.blocks.events import WorkerId


class EnginePayload(Message, frozen=True):
    """One batch as the engine published it, each once and in the engine's order."""

    data: bytes


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


class RouterResized(Message, frozen=True):
    """The router hashes requests by blocks of `block_size` tokens from now on."""

    block_size: int


class EngineAnswers(Message, frozen=True):
    """Whether the sidecar's engine answers its health checks."""

    answering: bool


class EngineServes(Message, frozen=True):
    """The models that the engine serves now; `adapters` are those that are LoRA adapters."""

    models: tuple[str, ...]
    adapters: tuple[str, ...] = ()


class EngineSilent(Message, frozen=True):
    """The engine of `worker` does not answer. `slow`: it may yet, it took the question."""

    worker: WorkerId
    slow: bool = False


class EngineLoad(Message, frozen=True):
    """What the engine last reported of its load."""

    load: WorkerLoad
