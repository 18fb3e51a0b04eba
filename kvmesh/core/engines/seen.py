"""What is seen of an engine by whoever diagnoses it, and what a finding is."""

from enum import Enum

import msgspec

from kvmesh.core.engines.engine_events import FULL_ATTENTION


class Level(Enum):
    """How bad a finding is. With FAIL, requests are not routed by this engine's cache."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at: what is the case, and what to do about it."""

    level: Level
    topic: str
    text: str
    remedy: str = ""


class GroupSeen(msgspec.Struct, frozen=True):
    """One cache group of an engine, by its stored blocks: `kind` of attention ("" untold), tokens a
    block, tokens of a sliding window (0 for none).
    """

    number: int = 0
    kind: str = ""
    block_size: int = 0
    window: int = 0

    @property
    def full(self) -> bool:
        """Return whether it decides how long a prefix can be reused."""
        return (self.kind or None) in FULL_ATTENTION

    def words(self) -> str:
        """Return what it is, in words."""
        of = f" of {self.window} tokens" if self.window else ""
        return f"{self.kind or 'untold kind'}{of} in blocks of {self.block_size}"


class SourceSeen(msgspec.Struct, frozen=True):
    """One rank's publisher. `batches` heard, of them `undecodable`; `connected` to its socket.

    `block_sizes` are those of stored blocks that decide a prefix, `groups` the cache groups they
    are in; `unknown` counts fields and tags nobody here knows, `odd` events left out as they
    cannot be read. `why` is what was wrong with the last of these, or with the last batch.
    """

    rank: int
    endpoint: str
    replay: str = ""
    connected: bool = True
    replay_connected: bool = True
    batches: int = 0
    undecodable: int = 0
    stored_blocks: int = 0
    block_sizes: tuple[int, ...] = ()
    groups: tuple[GroupSeen, ...] = ()
    unknown: int = 0
    odd: int = 0
    why: str = ""


class ProbeSeen(msgspec.Struct, frozen=True):
    """What came of sending one prompt twice. None: the engine did not say.

    `error` is why there was no answer. `cached_tokens` is of the second time. `ids_differ_at` is
    where the ids of the model directory `tokenizer` differ from the engine's, -1 nowhere.
    """

    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    tokenizer: str = ""
    ids_differ_at: int | None = None


class EngineSeen(msgspec.Struct, frozen=True):
    """What an engine says and does. `kind` "" and `version` "" when it did not tell.

    `lists_events`: whether it has a way to list its publishers.
    """

    url: str
    answers: bool = True
    kind: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    lists_events: bool = False
    block_size: int = 0
    prefix_caching: bool | None = None
    sources: tuple[SourceSeen, ...] = ()
    probe: ProbeSeen | None = None
