"""What the compiled core has, by the rooms of `kvmesh/native/`, the lowest first.

Shapes, units and errors stand here, how it is done in the C. `make check` holds this
file to the module.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Self, TypeAlias, TypeVar, final

from kvmesh.core.blocks.events import Cleared, Event, Removed, Stored, WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.chat.kept import Kept
from kvmesh.core.cost.expression import Step
from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.event_stream import EventStream as RareStream
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import ApproxStatistics
from kvmesh.core.index.block_table import (
    Drops,
    EndTables,
    FoldedMessage,
    FrozenTable,
    Groups,
    Holding,
    IndexView,
    TableLoader,
)
from kvmesh.core.insight.decision_record import State
from kvmesh.core.insight.trace_ring import Traced
from kvmesh.core.insight.traffic import TrafficRow
from kvmesh.core.members.left_out import LeftOut
from kvmesh.core.members.loads import Demand, SequencesStatistics
from kvmesh.core.members.outcomes import Attempt
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.prompts.segment_cache import EncodeBatch
from kvmesh.core.prompts.text_packer import Message, Opening
from kvmesh.core.routing.choice.inputs import Inputs
from kvmesh.core.routing.choice.made import Terms
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.event_fold import EventFold
from kvmesh.core.routing.output_lengths import Families, OutputForecast, OutputStatistics
from kvmesh.transport.grpc.extproc_messages import (
    GatewayMessage,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from kvmesh.transport.grpc.session_events import Event as SessionEvent

_Value = TypeVar("_Value")

VERSION: Final[int]
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/base/base.h."""

# Constants that Python shares; the module that has the name, too, says what it is.
DUE: Final[int]
ENDED: Final[int]
ENTRY_OVERHEAD: Final[int]
GAMMA: Final[float]
KEY_BYTES: Final[int]
MAX_KIND: Final[int]
MAX_RELEASED: Final[int]
MOST_GRADED: Final[int]
MOST_STATES: Final[int]
MOST_TIERS: Final[int]
MOST_TOKENS: Final[int]
MOST_WEIGHTS: Final[int]
OVERDUE: Final[float]
RENEW_S: Final[float]
SHARDS: Final[int]
TAKEN: Final[int]

# ---- base: how tables place numbers ----

def mix(number: int, /) -> int:
    """Return where tables place a u64: the upper bits count. For tests."""

def rekey(white: int, first: int, second: int, /) -> tuple[int, int, int]:
    """Place numbers by this key from now on; return the one before. For tests: tables that hold
    anything are lost, so put the key back before they are touched. The latter two are made odd.
    """

# ---- wire: heads, requests of HTTP/1, event streams, ext_proc ----

@final
class Names:
    """Names of headers, in lower case, that somebody asks for: these, and all that begin with
    `prefix`, or one of several, if that is not empty.

    At most 4096: else `ValueError`.
    """

    def __new__(cls, names: Iterable[bytes], prefix: bytes | tuple[bytes, ...], /) -> Self: ...

@final
class Head:
    """The headers of one message, in the order sent, names in lower case. O(headers) each.

    They stay the bytes that came: what nobody asks for is never made an object. Raises
    `OverflowError` for headers of 2 GiB.
    """

    def __new__(cls, headers: Iterable[tuple[bytes, bytes]], /) -> Self: ...
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return all, made anew with each call."""

    def get(self, name: bytes, /) -> bytes | None:
        """Return the first value of a name, None without one."""

    def select(self, names: Names, /) -> Sequence[tuple[bytes, bytes]]:
        """Return those that `names` ask for."""

    def has(self, names: Names, /) -> bool:
        """Return whether `names` ask for any."""

    def replaced(self, names: Names, added: Iterable[tuple[bytes, bytes]], /) -> Head:
        """Return the head without those that `names` ask for, and with `added` behind the rest."""

    def render(self, names: Names, /) -> bytes:
        """Return the lines of those that `names` do not ask for, each with its CRLF.

        Raises `ValueError` when a name or value would start a new line (header injection).
        """

def render(headers: Iterable[tuple[bytes, bytes]], /) -> bytes:
    """Return the header lines, each with its CRLF.

    Raises `ValueError` when a name or value would start a new line (header injection).
    """

def match_head(data: bytes, before: bytes, behind: bytes | None, most: int, /) -> bytes | None:
    """Return the body if `data` is one whole message with this head, else None.

    The head is `before`, the body's length, at most `most`, and `behind`; with `behind` None it is
    `before` alone, without a body.
    """

def take_request(
    data: bytes, most_head: int, most_target: int, most_headers: int, most_body: int, /
) -> tuple[str, bytes, bytes, str, str, Head] | None:
    """Return method, target, body, path, query and `Head` of the one whole request that `data` is;
    None where llhttp has to look.

    At most so many bytes of head, target and body, and so many headers.
    """

def take_answer(
    data: bytes, most_head: int, most_headers: int, most_body: int, /
) -> tuple[int, Head, int, bytes | None] | None:
    """Return status, `Head` without its framing, where that ends, and the body of the one whole
    answer that `data` is, of status 200 and above, after which the connection stays; None for the
    body of one in chunks that begins there. None where llhttp has to look.

    At most so many bytes of head and of a whole body, and so many headers.
    """

@final
class EventStream:
    """An event stream on its way to a client: what may pass, and what it says, in one call a piece.

    `make` makes what takes the rest: events that may be errors or have several lines, and the whole
    stream from the first CR or overlong event on. `find_usage` reads one event over what was
    reported before, when that is asked for. `kept` makes what `kept` returns.
    """

    due: int
    """The tokens at which `take` says so; 1 at first."""

    hides_usage: bool
    """Whether events that report usage alone, without a choice, do not pass: False at first."""

    @property
    def tokens(self) -> int:
        """How many events that carry output have ended."""

    @property
    def done(self) -> bool:
        """Whether `[DONE]` was seen as an event of its own."""

    @property
    def reasoned(self) -> bool:
        """Whether an event said why the answer ended."""

    @property
    def errors(self) -> int:
        """The number of error events."""

    @property
    def error(self) -> bytes:
        """The last error event's data, b"" for none."""

    @property
    def usage(self) -> Usage | None:
        """What was reported last."""

    @property
    def held(self) -> bytes:
        """What has not passed yet."""

    @property
    def torn(self) -> bool:
        """Whether a part of an overlong event has passed."""

    def __new__(
        cls,
        make: Callable[[], RareStream],
        find_usage: Callable[[bytes, Usage | None], Usage | None],
        kept: Callable[..., Kept],
        /,
    ) -> Self: ...
    @property
    def kept(self) -> Kept | None:
        """What was kept so far, None without `keep`. O(ids)."""

    def keep(self, most_bytes: int, strip: bool, marking: bool = False) -> None:
        """Keep the token ids of what passes from now on, 4 bytes each, at most `most_bytes` in all.

        With `marking` each event leaves marks, too (`core.chat.stream_marks`), of which at most
        four times as much is kept. Its text is counted, and with `strip` each list of ids passes
        as null.
        Lists are found at their places in chunks of /v1/chat/completions and /v1/completions, in
        events of one line `data: {…}`. A malformed event passes as it is. An event is held up to
        64 KiB and 3 bytes for each of `most_bytes`, because a prompt's ids may be many; from the
        first CR or longer event on nothing is kept or replaced. Raises `ValueError` for less than
        0 bytes, `RuntimeError` where tokens have come, or it was called before.
        """

    def feed(self, data: bytes, /) -> bytes:
        """Return what may pass now, `data` itself when that is all; count the events that ended."""

    def take(self, data: bytes, may_end: object, /) -> int | bytes | tuple[int, bytes]:
        """Count `data`, which stands between two chunks of HTTP, if it may be passed on as it is.

        That is when it is nothing but whole chunks with plain size lines, each of whole ordinary
        events or `[DONE]`, and, if it `may_end`, the last chunk. Returns 1, with 2 if `tokens` are
        `due`, and with 4 at the end; else 0, and nothing has changed. Where lists of ids are
        replaced it returns the chunks to pass in place of `data`, in place of 1, else behind that.
        """

    def flush(self) -> bytes:
        """Return what is held: the stream ended without a last blank line."""

    def is_complete(self) -> bool:
        """Return whether the last event that passed was `[DONE]`: nothing is missing behind it."""

def text_hash(state: int, text: bytes, /) -> int:
    """Return the hash of text that follows one of hash `state`, 0 for none: 64 bits, FNV-1a xor
    that of no text. However a text is cut, its hash is the same. 1 ns a byte.
    """

def read_extproc(
    types: tuple[
        type[RequestHeaders],
        type[ResponseHeaders],
        type[RequestBody],
        type[ResponseBody],
        type[RequestTrailers],
        type[ResponseTrailers],
        type[Modes],
        type[Exception],
    ],
    data: bytes,
    /,
) -> GatewayMessage:
    """Return what a gateway's message says, in one of these types.

    Of a field that may stand once the last counts. Fields and metadata that a picker has no use for
    are skipped. Raises the last of the types for what is no `ProcessingRequest`, or an empty one.
    """

# ---- http2: HTTP/2 of a gRPC server ----

@final
class GrpcSession:
    """The server's side of one connection. Nothing here raises for what the peer sends.

    A finished stream is open until its answer has gone out and the peer has ended its side.
    Limits: open streams, bytes of a message, of a head, windows of a stream (1 to 2^31-1 bytes) and
    of the connection (at least 65,535), bytes of a stream that wait before its sender should pause,
    idle frames, early resets. Raises `ValueError` for limits out of range, `RuntimeError` where it
    is entered from within.
    """

    def __new__(
        cls,
        max_streams: int,
        max_message_bytes: int,
        max_header_bytes: int,
        stream_window_bytes: int,
        connection_window_bytes: int,
        write_buffer_bytes: int,
        max_idle_frames: int,
        max_early_resets: int,
        /,
    ) -> Self: ...
    @property
    def greeted(self) -> bool:
        """Return whether the peer has spoken HTTP/2."""

    @property
    def drained(self) -> bool:
        """Return whether, behind `drain`, no new stream of the peer is on its way."""

    @property
    def open_streams(self) -> int:
        """Return how many streams are not over."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of messages that are not whole, and of those that wait to go out."""

    def receive(self, data: bytes | bytearray | memoryview, /) -> Sequence[SessionEvent]:
        """Take bytes of the peer, return what they say. After FAILED nothing more is taken."""

    def send(self, stream_id: int, messages: Sequence[bytes], /) -> int:
        """Queue messages, return the bytes of the stream that wait for flow control."""

    def finish(
        self, stream_id: int, messages: Sequence[bytes], status: int, text: bytes, /
    ) -> None:
        """Queue the last messages and the trailers; no events of the stream follow."""

    def reset(self, stream_id: int, code: int, /) -> None:
        """Give the stream up at once; no events of it follow."""

    def hold(self, stream_id: int, /) -> None:
        """Grant the stream no more window."""

    def grant(self, stream_id: int, /) -> None:
        """Grant the stream its window again."""

    def block(self) -> None:
        """Keep data of streams here until `unblock`: the socket takes no more."""

    def unblock(self) -> Sequence[SessionEvent]:
        """Let data of streams go out again; returns RESUMED events."""

    def drain(self) -> None:
        """Ask the peer to open no more streams; those on their way are still taken."""

    def reset_idle(self) -> None:
        """Count idle frames and early resets from 0 again; give up what the peer left half closed
        since the last call.
        """

    def take(self) -> bytes:
        """Return the bytes to send, b"" for none."""

# ---- bodies: JSON of bodies ----

def scan_json(
    data: bytes | bytearray | memoryview, state: int, depth: int, /
) -> tuple[int, int, int, int, int]:
    """Return (values, numbers, deepest, state, depth) of one piece of a JSON text.

    `values` are objects, lists, strings (keys, too) and the words true, false, null; each counts
    where it begins. `state` (0 at first, between values) and `depth` are what the piece before
    returned. What is no JSON is counted somehow, and never raises. O(bytes).
    """

def scan_tokens(body: bytes | bytearray | memoryview, /) -> bytes | None:
    """Return the byte tokenizer's ids of a body's chat, or else of its text prompt, as native u32s.

    None for what `scan` leaves, but that choices, `lora_path` and `input_ids` are not looked at,
    and for a chat that its tokenizer has to look at: media, unusual numbers in tools,
    fields of other types than a chat's. For tests: what is hashed is made so.
    """

@final
class Scanned:
    """What routing reads of a body, kept as the bytes that it is; made by `scan`."""

    @property
    def body(self) -> bytes:
        """The bytes."""
    @property
    def model(self) -> str:
        """The model's name, or nothing."""
    @property
    def bare(self) -> bool:
        """Whether a chat has nothing but messages that are texts."""
    @property
    def count(self) -> int:
        """How many messages a chat has."""
    @property
    def asks(self) -> bool:
        """Whether it has an `urgency`, a `cache_key` or a `keep_s`."""
    @property
    def cache_key(self) -> str:
        """`prompt_cache_key`, or nothing."""
    @property
    def keep_s(self) -> int:
        """For how many seconds its `prompt_cache_retention` would have the prompt kept, or 0."""
    @property
    def salt(self) -> str:
        """`cache_salt`, or nothing."""
    @property
    def streams(self) -> bool:
        """Whether the answer is to come in pieces."""
    @property
    def limit(self) -> int:
        """The most tokens of the answer that its client takes, 0 for none named."""
    @property
    def urgency(self) -> int:
        """`priority`, 0 for none named."""
    @property
    def messages(self) -> list[tuple[str, str]] | None:
        """(role, content) of each message of a chat."""
    @property
    def prompt(self) -> str | None:
        """The prompt of a completion."""
    @property
    def rest(self) -> bytes:
        """The body of a chat, its list of messages empty."""
    def find_messages(
        self, kept: dict[int, tuple[bytes, _Value]], seed: int, domain: bytes, /
    ) -> tuple[list[_Value | None], list[tuple[int, int, int, int]]]:
        """Return what is kept of each message of a chat, beside `domain` and its bytes; None for
        nothing, then its number, its place in `kept`, and where in the body it begins and ends.
        """

def ask_usage(body: bytes, ids: bool, /) -> bytes | None:
    """Return the body of a stream that asks for usage as well, and with `ids` for token ids; the
    rest is its own bytes. None where it asks for usage itself, or it is not read how to ask.

    `continuous_usage_stats` stays as it is. 0.1 us for 400 B, 0.1 ns a byte of long texts.
    """

def scan(body: bytes, chat: bool, /) -> Scanned | None:
    """Return what routing reads of a chat or else a completion, kept as the bytes that it is.

    None for what the strict parser has to see: all that it refuses, the fields `kvmesh` and
    `nvext`, and the unusual; and for one of several choices, with a `lora_path` or `input_ids`, or
    without messages or a prompt that is one string. 0.3 us for 400 B, 0.1 ns a byte of long texts.
    """

# ---- prompts: texts, tokens, hash chains ----

@final
class TextCache:
    """Packed ids by text, the least recently used dropped, within `capacity` bytes: what
    `core.prompts.segment_cache.ByteBudgetCache` is for other keys. O(1).
    """

    def __new__(cls, capacity: int, /) -> Self: ...
    def get(self, text: str, /) -> bytes | None:
        """Return the ids and mark them used; None when they are unknown or were dropped."""

    def find(self, texts: list[str], /) -> list[bytes | None]:
        """Return the ids of each text, marked used; None where they are unknown."""

    def put(self, text: str, ids: bytes, /) -> None:
        """Remember `ids`; an entry above a quarter of the capacity is not worth its room."""

    def figures(self) -> tuple[int, int, int, int, int]:
        """Return what `core.prompts.segment_cache.CacheStatistics` is made of; an entry in both
        generations counts twice, as does its size.
        """

@final
class TextPacker:
    """Makes prompts of chats of forms that it was taught, by their sequences of roles.

    `encode_batch` is given the texts that `cache` does not know.
    """

    def __new__(cls, cache: TextCache, encode_batch: EncodeBatch, /) -> Self: ...
    @property
    def packed(self) -> int:
        """How many chats were packed."""

    def teach(
        self,
        roles: tuple[str, ...],
        hints: tuple[str, ...],
        marks: tuple[str, ...],
        parts: tuple[bytes, ...],
        openings: tuple[Opening, ...],
        /,
    ) -> None:
        """Learn a form: packed ids, empty where a segment with a text belongs.

        It holds for texts that are not blank and have none of `hints`, or one of them but none of
        `marks`, of which there may be more. Raises `ValueError` for an opening outside of it.
        """

    def forget(self) -> None:
        """Forget all forms."""

    def pack(self, messages: Sequence[Message], /) -> bytes | None:
        """Return the packed ids of a chat, a list or a tuple; None where somebody has to look
        closer.

        What was not seen before is tokenised in one call, whose errors come through. Raises
        `ValueError` and `TypeError` where that does not answer bytes for each text.
        """

def chain(
    seed: int, packed: bytes | bytearray | memoryview, start: int, width: int, count: int, /
) -> list[int]:
    """Return the hashes of `count` blocks of `width` bytes from byte `start` of a buffer on, each
    seeded with the one before, the first with `seed` modulo 2^64.

    Raises `ValueError` when they do not fit. About 25 ns a block of 64 bytes.
    """

def chain_tokens(
    seed: int, tokens: Sequence[int], first: int, size: int, count: int, /
) -> bytes | None:
    """Return the hashes of `count` blocks of `size` tokens from token `first` on, as native u64s.

    None, for someone else to look closer, when `tokens` are no list or tuple, too few, or one of
    them is no plain int from 0 to 2^32 - 1. About 2 ns a token.
    """

def pack_chain(
    seed: int, tokens: bytes | bytearray | memoryview | str, first: int, size: int, count: int, /
) -> bytes:
    """Return the same of a buffer of u32s, or of a string: its code points.

    Raises `ValueError` when there are fewer. About 10 ns a block of 16 tokens.
    """

def pack_u64s(hashes: Sequence[int], /) -> bytes | None:
    """Return a list or tuple of ints as native u64s.

    None, for someone else to look closer, when it is neither, or one of them is no plain int from
    0 to 2^64 - 1. About 2 ns a hash.
    """

# ---- engines: one engine's caches ----

@final
class EngineCache:
    """One engine's batches in, prefix-closed events out: what it holds, in content hashes, as
    `core.engines.kv_events.cache.EngineCache` says. About 50 B a block.

    `names`: tiers by medium, in upper case, kinds of full attention, what makes a namespace's root
    of a LoRA's name and a salt, and the types of the events that `fold` takes; `types`: those of
    the events that follow. `secret`: roots are made by that function even without name and salt;
    `farthest`: the tier of an unknown medium. `limits`: most blocks, contents of one hash, counted
    stores of a block in a tier, hidden blocks of a tier, hashes of an event; `ValueError` for such
    as cannot be.

    Where memory ends in the middle of a change nothing is held, and every call but `references` and
    `statistics` raises `MemoryError` until `lose`, `restart` or `load`; `RuntimeError` where it is
    entered from within.
    """

    complete: bool
    """Whether all is known that the engine did since it started or cleared."""

    @property
    def group(self) -> int | None:
        """The number of the cache group that is followed, None while no event told."""

    @property
    def block_size(self) -> int:
        """The engine's block size in tokens; 0 while it is unknown."""

    def __new__(
        cls,
        block_size: int | None,
        secret: bool,
        farthest: int,
        names: tuple[
            Mapping[str, int],
            frozenset[str | None],
            Callable[[str, str], int],
            type[EngineStored],
            type[EngineRemoved],
            type[EngineCleared],
        ],
        types: tuple[type[Stored], type[Removed], type[Cleared]],
        limits: tuple[int, int, int, int, int],
        /,
    ) -> Self: ...
    def take(self, payload: bytes | bytearray | memoryview, /) -> list[Event] | None:
        """Fold one batch as the engine published it; return the events that follow.

        None, and nothing changed, if the Python decoder has to read it, or it shows several groups:
        then call `fold`, or `hand_over`. About 0.4 us a block.
        """

    def fold(self, batch: EngineBatch, /) -> list[Event]:
        """Fold a batch that was read; return the events that follow."""

    def hand_over(
        self,
    ) -> tuple[int, int, list[tuple[int, int, tuple[int, ...], int, int]], tuple[int, ...]]:
        """Return what `core.engines.kv_events.residency.Handover` has, but for the number of blocks
        among the counts, and hold nothing. Of several contents of one hash the first goes.
        """

    def lose(self) -> list[Event]:
        """Hold nothing, since batches are gone."""

    def restart(self) -> list[Event]:
        """Hold nothing, since the engine began anew: its blocks may have another size now."""

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""

    def save(self) -> tuple[int, int, tuple[int, ...], bytes]:
        """Return what `core.engines.kv_events.saved_cache.SavedCache` has. O(blocks)."""

    def load(
        self, group: int, block_size: int, tiers: tuple[int, ...], blocks: bytes, /
    ) -> list[Event] | None:
        """Hold what `save` returned in place of what is held; return the events that follow. None,
        and nothing is held, for blocks that are none. O(blocks).
        """

    def add(self, blocks: bytes | bytearray | memoryview, /) -> list[Event] | None:
        """Hold blocks as `save` returned them, of the nearest tier, beside what is held; return the
        events that follow. None, and nothing is held any more, for bytes that are none. O(blocks).
        """

    def references(self, engine_hash: int, /) -> int | None:
        """Return how often the nearest tier stored a block, None for one that is not known."""

    def statistics(
        self,
    ) -> tuple[
        int, int, int, tuple[int, int, int, int, int, int, int, int], list[tuple[int, int, int]]
    ]:
        """Return unknown fields, unknown tags, visible blocks, the counts of `ResidencyStatistics`
        and, of each tier, those of `ClosureStatistics`.
        """

# ---- groups: caches of several groups ----

@final
class GroupTable:
    """What every cache group of an engine holds of each prefix, and where a hit may end: for hashes
    that cover nothing behind their block.

    Counts blocks by group, tier and engine hash. Hashes and keys are u64s; of `Stored` and
    `Removed` events are made. Bounds: blocks, how often a tier may have stored one, hidden blocks
    of a tier, hashes of an event; `ValueError` for any out of range. Where memory ends in the
    middle of a change, or one breaks off, every call but `clear` and `counts` raises `MemoryError`
    until `clear`; `RuntimeError` where it is entered from within.
    """

    def __new__(
        cls,
        stored: type[Stored],
        removed: type[Removed],
        most_blocks: int,
        most_references: int,
        max_hidden: int,
        max_run: int,
        /,
    ) -> Self: ...
    def find(self, engine_hash: int, /) -> tuple[int, int, int] | None:
        """Return key, namespace's root and units of the prefix that a hash names, if any group
        holds a block of it.
        """

    def store(
        self,
        slot: int,
        tier: int,
        span: int,
        times: int,
        hashes: Sequence[int],
        ends: Sequence[int | None],
        before: int | None,
        root: int,
        path: Sequence[int],
        /,
    ) -> int:
        """Count blocks of the group at `slot`, each `times`; return how many did not fit.

        `ends` has the keys that they end at, None for those to be left out; `span` the units of
        each, if they are several blocks in one, else 0. Keys of `path`, each a unit behind the one
        before, the first behind `before` or the first of a sequence, are made where they are not
        there; what nothing ends at, or behind, is not kept. Raises `IndexError` for no such group.
        """

    def remove(self, slot: int, tier: int, hashes: Sequence[int], /) -> int:
        """Count blocks less, each as often as it is named; return how many were not held there."""

    def open(self, tier: int, /) -> list[Event]:
        """Follow a tier from now on, if it was not used before: all nearer blocks belong to it;
        return what stores them.

        Raises `ValueError` for a ninth tier, and for one that is not from 0 to 255.
        """

    def settle(self) -> list[Event]:
        """Return what became visible since the last call, or no longer is, tier by tier."""

    def take_ends(self) -> tuple[list[Removed], list[Stored]]:
        """Return the ends that are none any more, and the new ones, since the last call."""

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""

    def settle_rule(
        self, groups: tuple[tuple[int, int, int], ...], align: int, drop: int, /
    ) -> None:
        """Work out anew what is held means: groups are (role, units a block, blocks that a window
        needs), those known before first, up to 64; hits end at `align` units, `drop` fewer.
        """

    def clear(self) -> None:
        """Forget every block, and the farther tiers; the rule has to be told anew."""

    def counts(self) -> tuple[int, int, list[int], list[tuple[int, int, int]]]:
        """Return blocks, prefixes, blocks of each group, and of each tier the blocks that are held,
        hidden and forgotten.
        """

# ---- index: block tables ----

@final
class Table:
    """Block hash -> mask of the workers that hold it, for one tier. About 35 B a block.

    Runs of blocks are packed u64s; holdings are the table's own.
    """

    @property
    def holdings(self) -> dict[WorkerId, Holding]:
        """What each worker holds."""

    def __new__(cls) -> Table: ...
    def admit(self, worker: WorkerId, bit: int, /) -> Holding:
        """Return the holding of `worker`, made when there is none."""

    def holds(self, bit: int, block: int, /) -> bool:
        """Return whether the worker with that bit holds `block`."""

    def mask(self, block: int, /) -> int:
        """Return the mask of those who hold a block, 0 for nobody."""

    def extend(self, holding: Holding, parent: int, run: bytes, /) -> bool:
        """Add blocks behind `parent` (0: the root), as `store`; False, and no change, when it is
        not held.
        """

    def store(self, holding: Holding, run: bytes, /) -> None:
        """Add blocks; those already held change nothing. 50 ns a block."""

    def remove(self, holding: Holding, run: bytes, /) -> list[int]:
        """Take blocks away; return those that were not held."""

    def fold(
        self, holding: Holding, data: bytes, epoch: int, first_seq: int, room: int, /
    ) -> FoldedMessage | None:
        """Apply a journal message at once if it is ordinary; None, and no change, if it is not.

        Ordinary ones are of that epoch, begin with that event, and hold nothing but what is stored,
        at most `room` blocks, and removed in device memory.
        """

    def fold_ends(
        self,
        holding: Holding,
        data: bytes,
        epoch: int,
        first_seq: int,
        room: int,
        ends: tuple[Table, Holding],
        /,
    ) -> tuple[FoldedMessage, int, int] | None:
        """Do the same where the worker's ends of device memory, with where they are kept, are
        ordinary too; return also how many ends were told, and taken back that were none.
        """

    def move(self, run: bytes, mask: int, target: Table, /) -> None:
        """Move blocks, which nobody alive outside `mask` holds here, into another table.

        The caller accounts for the holdings.
        """

    def size(self) -> int:
        """Return how many blocks at least one worker holds, released ones included."""

    def clear_bits(self, number: int, dead: int, place: int, /) -> tuple[int, int]:
        """Clear the bits of `dead` in a slice of one shard, the first one at place 0; return about
        how many blocks it had, and the place of the next one, 0 behind the last. 0.7 ms.
        """

    def find_drops(self, hashes: Hashes, live: int, older: Table | None = None, /) -> Drops:
        """Return where along a prompt workers drop out, of this table and an older one together.

        Only bits of `live` count; others may stand anywhere. O(drops x log(depth)) look-ups: of
        prefix-closed workers masks only lose bits along a prompt, so two equal ones have nothing
        but equal ones between them. Hashes at most `AHEAD` blocks, or a quarter, of the prompt
        beyond what is held.
        """

    def view(
        self,
        older: Table | None,
        names: Sequence[WorkerId],
        live: int,
        ends: EndTables | None = None,
        /,
    ) -> IndexView:
        """Return a view of this table and an older one; of grouped workers, with their `ends`.

        Raises `ValueError` where `live` has a slot without a name. O(workers).
        """

    def freeze(self) -> FrozenTable:
        """Return this table as it is now, for as long as the result is not closed. O(shards)."""

    def loader(self, masks: list[int], /) -> TableLoader:
        """Return what fills this table, which must be empty."""

    def pieces(self) -> list[object]:
        """Return what holds the memory of a table that is not used any more, to be let go piece by
        piece; while a view is open nothing is forgotten, and the pieces hold nothing.
        """

# ---- beliefs: what workers probably hold ----

@final
class Approx:
    """Believes a prompt cached where it was sent, for a while, as `new_approx` says.

    Entries, (worker, block) pairs, leave in `expire` and `record`, not by themselves.
    """

    ttl_s: float
    """How long a prompt counts, seconds."""

    @property
    def next_end(self) -> float:
        """Before it there is nothing to `expire`; infinite where nothing is believed."""

    @property
    def changes(self) -> int:
        """A count that moves whenever a worker gets a slot or loses it."""

    def __new__(
        cls,
        statistics: type[ApproxStatistics],
        ttl_s: float,
        limits: tuple[int, int, int | None],
        longest_tick_s: float,
        keeps: int,
        /,
    ) -> Approx:
        """`limits`: most entries, those that pruning leaves, most blocks of a worker or None.

        `keeps` of a prompt 0: each block, 1: thinned, 2: graded. Raises `ValueError` for another
        way, and for a worker's limit below 0.
        """

    def record(
        self,
        worker: WorkerId,
        hashes: Hashes | Sequence[int],
        now: float,
        /,
        ttl_s: float | None = None,
        keep_s: float = 0.0,
    ) -> None:
        """Believe the blocks of `hashes`, root first, cached at `worker` from `now` on.

        `ttl_s` is for this prompt, default the index's own; `keep_s` in its place where that is
        longer and fewer than half of the most entries are taken. What ended before `now` is
        dropped on the way, a slice at a time. O(log(depth) + depth / 64 + blocks not believed yet).
        """

    def record_graded(
        self,
        worker: WorkerId,
        graded: Sequence[int],
        blocks: int,
        now: float,
        /,
        ttl_s: float | None = None,
    ) -> None:
        """Do as `record` with a prompt of so many `blocks` of which `grade` made `graded`.

        What `grade` cannot have made of so many does not count. Raises `ValueError` unless the
        index keeps graded blocks.
        """

    def expire(self, now: float, /, budget: int | None = None) -> bool:
        """Drop what ended before or at `now`; True when nothing of it is left.

        `budget` bounds the entries dropped in this call.
        """

    def revoke(self, worker: WorkerId, hashes: bytes, /) -> None:
        """Take the news that `worker` holds these packed blocks no longer, nor what follows them.

        O(blocks given, and dropped).
        """

    def bound(self, worker: WorkerId, slots: int, blocks: int, /) -> None:
        """Take what an engine says it keeps: so many prompts, one in each slot, and so many blocks,
        0 each: it does not say. Of more than 64 slots only the blocks count.
        """

    def keeps(self, worker: WorkerId, /) -> tuple[int, int]:
        """Return how many prompts and blocks an engine seems to keep, 0 each: not known."""

    def remove_worker(self, worker: WorkerId, /) -> None:
        """Forget everything believed of `worker`. O(1); `sweep` gives the memory back."""

    def sweep(self, budget: int, /) -> bool:
        """Do about `budget` blocks of cleaning up after removals; True when nothing is left."""

    def workers(self) -> list[WorkerId]:
        """Return the workers that something was recorded for."""

    def blocks(self, worker: WorkerId, /) -> int:
        """Return how many blocks `worker` is believed to hold."""

    def sizes(self, workers: Sequence[WorkerId], /) -> list[int]:
        """Return how many blocks each of `workers` is believed to hold."""

    def find_matches(self, hashes: Hashes, /) -> dict[WorkerId, int]:
        """Return the prefix length believed cached, in blocks, per worker that has any."""

    def find_groups(self, hashes: Hashes, /) -> Groups:
        """Return disjoint (depth, workers), deepest first."""

    def statistics(self) -> ApproxStatistics:
        """Return sizes and counts."""

# ---- loads: bookings, sums of workers, turns ----

@final
class Booking:
    """One request at one worker, to be read alone. Times are the caller's clock, seconds.

    `renewed_s` is its last sign of life, `output_s` when output last came, or
    began to come unseen. `service_s` is how long
    the prefill of `service_tokens` took, its own and of those whose end was inferred from it,
    counted from when the worker could have begun; meaningful after its first token. `prefilling`
    stays True for a request that ended without one. `hashes` are dropped with its first token: the
    prompt is cached by then, and events tell of it. `foreseen_blocks` of `private_blocks` are
    output that nobody saw but that must have come by now; seen answers have none.

    No amount is beyond `core.members.loads.MOST_TOKENS`, else `OverflowError`; keys are u64s.
    """

    @property
    def request_id(self) -> str: ...
    @property
    def worker(self) -> WorkerId: ...
    @property
    def owner(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def uncached_tokens(self) -> int: ...
    @property
    def service_tokens(self) -> int: ...
    @property
    def booked_s(self) -> float: ...
    @property
    def renewed_s(self) -> float: ...
    @property
    def output_s(self) -> float: ...
    @property
    def streams(self) -> bool: ...
    @property
    def keys(self) -> tuple[int, ...]: ...
    @property
    def hashes(self) -> Hashes | bytes | None: ...
    @property
    def private_blocks(self) -> int: ...
    @property
    def expected_blocks(self) -> int: ...
    @property
    def foreseen_blocks(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def prefilling(self) -> bool: ...
    @property
    def service_s(self) -> float: ...
    @property
    def turn(self) -> bool: ...
    @property
    def keep_s(self) -> int: ...

@final
class Loads:
    """The live sums of one worker, at first 0. Read freely; only `ActiveSequences` writes.

    `prefill_tokens`: uncached prompt tokens whose prefill is not known to be done, of the
    requests in `prefilling`, oldest first; `silent` of those will show no first token.
    `prompt_tokens`: all prompt tokens outstanding. `active_blocks`: KV blocks in use, shared ones
    once; `expected_blocks`: those the expected outputs will still take. `active_requests`,
    `active_blocks`, `prompt_tokens` and `prefill_tokens` include what only the engine's reports
    show: `unseen_requests`, `unseen_blocks`, `unseen_tokens`.
    `progress_s`: when the prefill backlog last moved, or began. `prefilling` and `shared`
    (requests by sharing key) are copies, made when they are read.
    """

    @property
    def prefill_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def active_requests(self) -> int: ...
    @property
    def active_blocks(self) -> int: ...
    @property
    def expected_blocks(self) -> int: ...
    @property
    def progress_s(self) -> float: ...
    @property
    def silent(self) -> int: ...
    @property
    def unseen_requests(self) -> int: ...
    @property
    def unseen_blocks(self) -> int: ...
    @property
    def unseen_tokens(self) -> int: ...
    @property
    def worker(self) -> WorkerId: ...
    @property
    def prefilling(self) -> dict[str, Booking]: ...
    @property
    def shared(self) -> dict[int, int]: ...
    @property
    def waiting_requests(self) -> int:
        """How many wait for their prefill."""

    @property
    def booked_requests(self) -> int:
        """The requests that routers booked."""

    @property
    def booked_blocks(self) -> int:
        """The blocks of the requests that routers booked."""

    @property
    def booked_tokens(self) -> int:
        """The uncached prompt tokens of the requests that routers booked."""

    def wait_ms(self, ms_per_token: float, now: float, step_tokens: float = 0.0) -> float:
        """Return when the backlog will be prefilled, ms from now: a clock run on `ms_per_token`.

        A step's fixed time counts as `step_tokens`. Time since the last progress is credited up to
        the oldest request's own prefill: were more done, its first token would have come.
        """

@final
class Arrivals:
    """A decayed count of requests over the equally decayed time in which they came: what the cost
    formulas call arrivals. One counts half after 10 seconds.

    Right from the first seconds on: a fleet just started has the caches cold and the rate full.
    """

    def fold(self, now: float, /) -> None:
        """Count one request. A clock that steps back counts as standing still."""

    def per_ms(self, now: float, /) -> float:
        """Return requests per millisecond."""

@final
class ActiveSequences:
    """Bookings of this replica and of its peers, summed per worker: `core.members.loads`
    makes one.

    Every method is idempotent: a repeated `add`, an unknown id, an event after the end change
    nothing. Request ids must be unique among all replicas. A booking lives while life signs renew
    its lease, however long the request runs.

    Blocks shared by requests at one worker are counted once, as far as sharing keys tell
    (`core.blocks.graded`): to 15 blocks of the first 256, to 63 up to 1,024, to 255 beyond. `add`
    takes those of the hashes that the caller happens to know, and never asks for more.

    `bookings` are the live ones by request id, to be read alone. `generation` counts the workers
    removed, whose `Loads` are then no longer live.
    `arrivals` counts what anybody books, `turns` what of it was sent in turn, by worker.
    """

    def __new__(
        cls,
        block_size: int,
        *,
        lease_s: float = 60.0,
        statistics: Callable[[int, int, int, int, int, int, int], SequencesStatistics],
    ) -> Self:
        """Make one whose statistics are made by this. Raises `ValueError`."""

    @property
    def bookings(self) -> dict[str, Booking]: ...
    @property
    def turns(self) -> dict[WorkerId, int]: ...
    @property
    def arrivals(self) -> Arrivals: ...
    @property
    def block_size(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def lease_s(self) -> float: ...
    def loads(self, worker: WorkerId, /) -> Loads:
        """Return the worker's live sums; a worker never seen has zeros."""

    def add(
        self, request_id: str, worker: WorkerId, demand: Demand, now: float, owner: str = ""
    ) -> bool:
        """Book a request; return False when it was already booked (at any worker)."""

    def first_token(self, request_id: str, now: float) -> Booking | None:
        """Note the end of a request's prefill; return its booking the first time, else None.

        Engines prefill in order of arrival: older requests that show no first token are done too.
        """

    def settle(self, now: float, ms_per_token: Callable[[WorkerId], float]) -> None:
        """End the prefills that nobody will see end, once they are overdue by half.

        O(workers that have such requests), but not more often than every
        `core.members.loads.SETTLE_EVERY_S`; call it before reading loads.
        """

    def grow(self, request_id: str, output_tokens: int, now: float) -> None:
        """Raise a request's output to `output_tokens` in total, `MOST_TOKENS` at most; a lower
        figure is old news.
        """

    def foresee(self, booking: Booking, blocks: int) -> None:
        """Count so many blocks of a live booking's expected output as come unseen, in place of
        what was counted before.
        """

    def finish(self, request_id: str, /) -> Booking | None:
        """Release a request, however it ended; return its booking the first time, else None."""

    def correct(self, worker: WorkerId, requests: int, blocks: int, prefill_tokens: int) -> None:
        """Count load at a worker that nobody booked, in place of what was counted before.

        The prompts of those `requests` are taken to fill the `blocks`.
        """

    def resize(self, block_size: int, /) -> None:
        """Count blocks of another size from now on; what is booked keeps those it was booked with.

        Load that nobody booked is forgotten until the next report of it. O(workers + requests).
        Raises `ValueError`.
        """

    def renew(self, request_ids: Iterable[str], now: float) -> None:
        """Take a sign of life for each: their leases run from `now`."""

    def renew_owner(self, owner: str, now: float) -> None:
        """Take a sign of life for every booking of one owner. O(requests)."""

    def expire(self, now: float) -> list[Booking]:
        """Release and return the bookings without a life sign for `lease_s`. O(requests)."""

    def remove_worker(self, worker: WorkerId, /) -> list[Booking]:
        """Release and return every booking at `worker`, and forget the worker. O(requests)."""

    def remove_owner(self, owner: str, /) -> list[Booking]:
        """Release and return every booking of a peer that went away. O(requests)."""

    def owned(self, owner: str = "") -> list[Booking]:
        """Return the live bookings of one owner, oldest first: what a joining peer asks for."""

    def unseen(self) -> list[Booking]:
        """Return the live bookings whose answers grow without anybody seeing how far, oldest first.
        O(requests), O(1) while all of them stream.
        """

    def statistics(self) -> SequencesStatistics:
        """Return totals. O(workers)."""

# ---- speeds: speeds of workers, lengths of answers ----

@final
class StepTimes:
    """Fits `ms = a (step_tokens + tokens)` to steps: decayed least squares, relative to the size.

    `step_tokens` is the fixed time in tokens, 4096 at most, the same whatever a worker's speed; 0
    until enough steps of different sizes were seen. Without it short prompts make every token look
    expensive.
    """

    step_tokens: float

@final
class Ratio:
    """Decayed sum of ms over decayed sum of tokens.

    `squares` is the sum of the samples' squared weights, of which the mean's error follows;
    `error` the last sample's, relative to what the mean foretold. `factor` is the worker's time
    per token over its fleet's, 1.0 while that may be chance. `slow_ms` is what each output token
    takes longer there than load explains.
    """

    ms: float
    tokens: float
    squares: float
    error: float
    factor: float
    slow_ms: float

@final
class Speeds:
    """Decayed ratios per worker, which are the fleet's as far as their difference may be chance:
    `core.members.loads` makes one.

    Every sample is clipped to 1/8..8 times the present belief, so no pause, clock step or wrong
    overlap moves it far at once; steady change is followed within some ten prompts. A worker that
    gets none is in time taken to be like the others. No history,
    no report and no clock but the caller's is needed. `fleet_ms_per_token` is the whole fleet's ms
    per uncached token, what an unknown worker is given.

    Workers' output is compared by their last 4 answers with the usual worker, the lower median of
    all: `slow_ms` of a worker's ratio is what each token takes longer there than 3 times the usual.
    """

    fleet_ms_per_token: float
    uncached_tokens: float
    output_tokens: float

    def __new__(cls, prior_ms_per_token: float) -> Self:
        """Make those of a fleet of which nothing was seen. Raises `ValueError` for a prior that is
        not above 0.
        """

    @property
    def steps(self) -> StepTimes: ...
    def ms_per_token(self, worker: WorkerId, /) -> float:
        """Return the worker's prefill time, ms per uncached token, always > 0. O(1)."""

    def prefill_ratio(self, worker: WorkerId, /) -> Ratio:
        """Return the worker's own evidence and factor, live until the worker is removed."""

    def ms_per_output_token(self, worker: WorkerId, /) -> float:
        """Return the time between two output tokens, ms; the fleet's when unseen, 0 without any."""

    def residence_ms(self, worker: WorkerId, /) -> float:
        """Return how long a request stays, ms; the fleet's when unseen, 0 without any."""

    def first_token(
        self, worker: WorkerId, uncached_tokens: int, service_s: float, now: float
    ) -> None:
        """Learn from a first token: `service_s` is the time since the worker could have begun.

        First tokens of one engine step count together: the step's time belongs to all of them.
        """

    def measured(self, worker: WorkerId, tokens: int, busy_us: int) -> None:
        """Learn from an engine's own totals: uncached tokens prefilled, and the time that took.

        First tokens teach nothing more about such a worker's prefill: they come late for many
        reasons. Smaller totals than before are those of a new engine.
        """

    def output(self, worker: WorkerId, tokens: int, elapsed_s: float) -> None:
        """Learn from `tokens` (> 0) output tokens that took `elapsed_s` since those before."""

    def finished(self, worker: WorkerId, residence_s: float, output_tokens: int) -> None:
        """Learn how long a request stayed, from booking to end, and its output (0: unknown)."""

    def answered(self, worker: WorkerId, tokens: int, elapsed_s: float) -> None:
        """Learn from an answer's `tokens` of output, which took `elapsed_s` behind its prefill, or
        behind its first token without that one.
        """

    def answer_tokens(self, expected_tokens: int, /) -> float:
        """Return what an answer of so many tokens (0: not known) counts for beside `slow_ms` of a
        worker's ratio.
        """

    def remove_worker(self, worker: WorkerId, /) -> None:
        """Forget a worker; the fleet remembers what it contributed."""

@final
class WorkerState:
    """A worker's load, speed and own words, for the loop over the candidates.

    `gaps`: load that nobody here booked, by its last reports. `failure_share` of the requests
    there fail beyond what is usual in the fleet, and `lost_ms` go by until they do. `blank_blocks`
    of its `capacity_blocks` hold nothing that is cached: they are taken before anything is evicted;
    0 while that is not known. `own_tokens`: so many are in a block of its own, 0: as many as in the
    router's.
    """

    loads: Loads
    info: WorkerInfo
    report: LoadReport
    gaps: tuple[tuple[int, int, int], ...]
    capacity_blocks: int
    blank_blocks: int
    own_tokens: int
    failure_share: float
    lost_ms: float

    def __new__(
        cls, worker: WorkerId, loads: Loads, prefill: Ratio, info: WorkerInfo, report: LoadReport
    ) -> Self: ...
    @property
    def worker(self) -> WorkerId: ...
    @property
    def prefill(self) -> Ratio: ...

@final
class OutputLengths:
    """Means of answers' lengths per family, each shrunk towards the wider one's:
    `core.routing.output_lengths` makes one.

    Prompts that agree in the blocks of their first 64, 256 or 1024 tokens are a family; a longer
    agreement tells more. Of families beyond `max_families`, from 0 to 2^28, the one that has waited
    longest for an answer is forgotten. A mean is that of all its answers up to 20, then the newest
    one weighs 0.05 in it.
    """

    def __new__(
        cls,
        forecast: Callable[[float, int, int], OutputForecast],
        statistics: Callable[[int, int, float, float], OutputStatistics],
        block_size: int,
        max_families: int,
    ) -> Self:
        """Make one that answers by these. Raises `ValueError`."""

    def forecast(self, hashes: Hashes, /) -> tuple[Families, OutputForecast]:
        """Return the families of a prompt, for `learn`, and how long its answer will probably be.

        O(1).
        """

    def learn(self, families: Families, tokens: int, foreseen: OutputForecast) -> None:
        """Take a whole answer of so many tokens, and what was `foreseen` of it. Raises `ValueError`
        for more than 3 families.
        """

    def resize(self, block_size: int, /) -> None:
        """Find families by blocks of another size; those known by the old ones are forgotten.
        Raises `ValueError`.
        """

    def statistics(self) -> OutputStatistics:
        """Return the present figures."""

# ---- peers: replicas' bookings ----

@final
class BookingOutbox:
    """Writes what becomes of this replica's bookings in `sequences`, until somebody takes it.

    Events are numbered from 1 on in each `epoch`: message q of n events has those up to
    `next_seq`. Bookings and workers travel as numbers; a worker's name is told before its first
    booking, and once in each state. Every event is idempotent, so a state may overlap with others.

    `on_first` is called when something enters while nobody is `gathering`, which it then is until
    it is set to False: a short while of events then goes in one message. No event raises anything
    but `TypeError` for what is none; what cannot be told is counted in `untold`. `format`, 0 to
    255, is the first byte of each message.

    Records that wait are left out beyond `native/peers/outbox.h: MOST_BYTES`. The numbers of the
    1024 last failed requests are kept, so that a second attempt is told under the same, and those
    of 16384 workers.
    """

    gathering: bool
    on_first: Callable[[], object] | None
    format: int

    def __new__(cls, sequences: ActiveSequences, epoch: int) -> Self:
        """Make one without anything to tell. Raises `OverflowError` for an epoch that is no u64."""

    @property
    def epoch(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def waiting(self) -> int:
        """How many events wait to be taken."""

    @property
    def untold(self) -> int: ...
    def placed(self, booking: Booking, /) -> None:
        """Tell of a booking of this replica's own, once."""

    def first_token(self, request_id: str, /) -> None:
        """Tell that a request's first token came."""

    def ended(self, request_id: str, attempt: Attempt = ...) -> None:
        """Tell that a request is over at its worker, and what that showed; without an `attempt`
        that it was served.
        """

    def publish_growth(self) -> None:
        """Tell of each booking whose output has grown since it was told of last, and of those that
        ended without a word that they are over. O(bookings told).
        """

    def begin_state(self) -> None:
        """Tell that all live bookings follow; peers drop the others with `end_state`."""

    def republish(self, bookings: Iterable[Booking], /) -> None:
        """Tell of live bookings as they are now; of others nothing."""

    def end_state(self) -> None:
        """Tell that the state is complete."""

    def take(self, max_events: int, max_bytes: int, shares: bytes = b"", /) -> list[bytes]:
        """Return all that waits as messages; the last one carries packed `shares`, if any.

        A message ends after `max_events` or with the record that fills `max_bytes`.
        """

    def beat(self, shares: bytes = b"", /) -> bytes:
        """Return a message without events, which says how far this replica is."""

@final
class Peer:
    """How far a peer was heard, whether all of it, and which bookings a state leaves out.

    `republished` are bookings that came with a state: when they really began is not known.
    `workers` are the names that its records give by number,
    `core.routing.event_fold.as_name_key` of it. `booked` counts its bookings, exactly at
    `counted_s`. Bookings are also kept by their number.
    """

    next_seq: int
    complete: bool
    unconfirmed: set[str] | None
    booked: int
    renewed_s: float
    counted_s: float

    def __new__(cls, name: str, epoch: int, now: float) -> Self:
        """Make one of which nothing was heard yet."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def republished(self) -> set[str]: ...
    @property
    def workers(self) -> dict[bytes, str]: ...

@final
class MessageFold:
    """Folds the messages of peers that are known as `core.routing.peer_bookings` does, record
    by record as `EventFold`, of which it asks what is rare. `core.routing.peer_bookings`
    makes one.

    `applied` and `gaps` count since the start.
    """

    def __new__(
        cls,
        *,
        events: EventFold,
        sequences: ActiveSequences,
        speeds: Speeds,
        hints: Approx | None,
        members: Mapping[str, object],
        strangers: dict[WorkerId, float],
        out: set[str],
        distrusted: set[WorkerId],
        late: dict[WorkerId, int],
        ttls: tuple[float, float],
        has_index: bool,
        limits: tuple[int, int],
    ) -> Self:
        """Make one of parts that others look at, too. Raises `TypeError` where `hints` is no graded
        `Approx`, or `members` or `late` no dict.

        `out` are the workers that something speaks against, `late` those of
        `core.members.late_prompts`, `ttls` the seconds for which a prompt
        is believed cached where events tell what is, and where not, `limits` the most bookings of
        one peer, and of all.
        """

    @property
    def applied(self) -> int: ...
    @property
    def gaps(self) -> int: ...
    def fold(self, peer: Peer, data: bytes, now: float, /) -> bool | None:
        """Fold a message; return whether the peer is known completely.

        None, and nothing is done: it has another format or epoch, or is not as it must be. Raises
        `CodecError`, and nothing is done, for shares that cannot be read.
        """

# ---- insight: records, sums, how prompts repeat ----

@final
class Record:
    """One request: its last decision, and what became of it. Times are the caller's, seconds.

    What of the decision is counted stands in the record itself; the `decision` as a whole, and
    `forecast`, are made when somebody reads them. `estimated`: `prompt_tokens` come from
    the size of the body, for nothing asked about its prompt.
    `attempts` counts workers it was sent to, `failures` says what went wrong at those before the
    last. `round_robin_blocks` is what round robin would have found cached; None: not known (yet).
    `held_ms` is how long it waited at the router before its first decision; None: it was not asked
    to. `left_out` are the workers to which no request might go when it was first decided, None
    where that was not kept. `forecast` is how long its answer was expected to become,
    `output_tokens` how long it was when its worker was given back. `overridden`: its client had it
    routed by another policy. `traced` is what a trace keeps of its prompt. `tenant` sent it.
    `kept` candidates are in the decision, 0 where that is the chosen one alone.
    `number` and `version` are the ring's; `version` grows with every change of any record.
    `score` and `told_blocks` are the decision's. The collector does not see records: nothing that
    one holds may lead back to its ring.
    """

    held_ms: float | None
    round_robin_blocks: int | None
    failures: tuple[str, ...]
    left_out: LeftOut | None
    traced: Traced | None
    overridden: bool
    estimated: bool

    @property
    def first_token_s(self) -> float | None: ...
    @property
    def ended_s(self) -> float | None: ...
    @property
    def reported(self) -> Usage | None: ...
    @property
    def forecast(self) -> OutputForecast | None: ...
    @property
    def tenant(self) -> str: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def request_id(self) -> bytes: ...
    @property
    def decision(self) -> Decision:
        """The last decision, made when it is first asked for."""

    @property
    def worker(self) -> WorkerId: ...
    @property
    def policy(self) -> str: ...
    @property
    def hash_count(self) -> int: ...
    @property
    def state(self) -> State: ...
    @property
    def status(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def decided_s(self) -> float: ...
    @property
    def ttft_ms(self) -> float | None:
        """The time from the first decision to the first token."""

    @property
    def ms_per_token(self) -> float: ...
    @property
    def score(self) -> float: ...
    @property
    def number(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def waiting_blocks(self) -> int: ...
    @property
    def overlap_blocks(self) -> int: ...
    @property
    def request_blocks(self) -> int: ...
    @property
    def capacity_blocks(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens to compute at its worker, what it has to load first included."""

    @property
    def block_size(self) -> int: ...
    @property
    def considered(self) -> int: ...
    @property
    def best_overlap_blocks(self) -> int: ...
    @property
    def told_blocks(self) -> int: ...
    @property
    def by_cache(self) -> bool: ...
    def known_hashes(self) -> Sequence[int]:
        """Return the prompt's hashes, root first: none once they were let go."""

    def forget_hashes(self) -> None:
        """Let the prompt's hashes go: of 100 KB they are 50 KB."""

    def terms(self) -> Terms:
        """Return the chosen candidate's terms."""

    def weighed(self) -> list[tuple[float, Terms]]:
        """Return score and terms of all candidates, where they were kept and the `decision` was
        not made yet.
        """

@final
class Ring:
    """The last `capacity` records, and who still has to read them.

    One reader takes records in order (`next_decided`) and ends in order of their end
    (`next_ended`), in its own time. What it is too slow for is dropped and counted (`dropped`,
    `dropped_ends`): records that left the ring, or whose prompts would have made those that wait
    more than `max_waiting_blocks`; ends beyond 16,384 that wait. `whole_per_s` decisions a second
    are to keep all their candidates (`may_weigh_all`); `max_candidates` are kept in all; beyond it
    the oldest decisions keep only the chosen one (`thin`). What `thin` raises is raised where a
    record came in or was decided again, which happened all the same.
    """

    def __new__(
        cls,
        capacity: int,
        max_waiting_blocks: int,
        max_candidates: int,
        whole_per_s: int,
        thin: Callable[[Decision], Decision],
    ) -> Self:
        """Make an empty one. Raises `ValueError` for a capacity below 1."""

    @property
    def capacity(self) -> int: ...
    @property
    def number(self) -> int:
        """The number of the newest record; the first is 1."""

    @property
    def version(self) -> int:
        """The version of the newest change."""

    @property
    def candidates(self) -> int: ...
    @property
    def waiting_blocks(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def dropped_ends(self) -> int: ...
    def __len__(self) -> int: ...
    def may_weigh_all(self, now: float, /) -> bool:
        """Return whether the next decision shall keep every candidate: so many each second."""

    def next_decided(self) -> Record | None:
        """Return the next record to read, its prompt's hashes included; None: all were read."""

    def next_ended(self) -> Record | None:
        """Return the next record that ended, of those read; None: there is none."""

    def waiting(self) -> tuple[int, int]:
        """Return how many records are not read yet, and how many ends."""

    def find(self, request_id: bytes, /) -> Record | None:
        """Return the newest record of that id; None when none is kept. O(records)."""

    def latest(self, limit: int, /) -> list[Record]:
        """Return the newest records, newest first."""

    def changed_after(self, version: int, /) -> list[Record]:
        """Return the records that changed after `version`, newest record first. O(records)."""

@final
class Totals:
    """Counts requests as they are decided and as they end, within these calls: no load delays or
    drops a count. What their shadow would have done comes later (`compared`), of those it followed.
    The last `kept_s` seconds in which anything happened are kept apart (`rows`).

    Histograms and tokens are of requests that finished, tokens those of prompts.
    `best_tokens` are what that of the considered workers held of a prompt which held most,
    `predicted_tokens` what the chosen one did: the difference is overlap given up for load. Raises
    `ValueError` for a time that is no finite number of seconds.
    """

    def __new__(cls, kept_s: int, times: Iterable[float], sizes: Iterable[float]) -> Self:
        """Count nothing yet; the bounds of the histograms, rising: of times in seconds, of prompts'
        and answers' sizes in tokens.
        """

    @property
    def prompt_sizes(self) -> Histogram:
        """By the engine's word, else as many as the router counted."""

    @property
    def output_sizes(self) -> Histogram: ...
    @property
    def ttft_s(self) -> Histogram: ...
    @property
    def itl_s(self) -> Histogram: ...
    @property
    def duration_s(self) -> Histogram: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def best_tokens(self) -> int: ...
    @property
    def predicted_tokens(self) -> int: ...
    def refused(self, now: float, /) -> None:
        """Count a request for which there was no worker."""

    def compared(self, record: Record, /) -> None:
        """Count what round robin would have done with an ended request, if that is known."""

    def rows(self, since: int, /) -> list[TrafficRow]:
        """Return the fields of each `TrafficSecond` from `since` on, oldest first."""

@final
class Histogram:
    """How often values of each size came: counts by upper bound, inclusive; the last bin has none.

    0.05 us a value.
    """

    total: float
    """The sum of all values."""

    def __new__(cls, bounds: Iterable[float]) -> Self:
        """Count nothing yet. Raises `ValueError` where the bounds do not rise."""

    def observe(self, value: float, /) -> None:
        """Count a value."""

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (bound, how many values were at most that), the last with bound infinity."""

@final
class TokenCounts:
    """Prompt tokens of answers, and of those whose engine told its cache use: all (`reported`),
    predicted to be cached, and cached by its word.

    `saved` were not computed since they were cached, by the engine's word or, where it says
    nothing, as predicted; `saved_s` is how long that would have taken there, in seconds.
    """

    prompt: int
    reported: int
    predicted: int
    cached: int
    saved: int
    saved_s: float

    def __new__(cls) -> Self: ...

@final
class PrefixCounts:
    """Counts prompts at some depths, in blocks: 1, 2, 3, 4, 6, 8, 12, 16, 24, … Times are the
    caller's, seconds.

    A request counts half after 120 s. Counts decay by forward decay: a later request weighs more,
    nothing old is ever touched. Beyond `max_nodes` the lighter half goes; a node is never kept
    without the one above it, for that one weighs at least as much.
    Source: forward decay, Cormode et al., ICDE 2009.
    """

    def __new__(cls, max_nodes: int) -> Self:
        """Count nothing yet. Raises `ValueError` for less than 1 node, or more than 2^24."""

    def record(self, hashes: Sequence[int], cached_blocks: int, now: float, /) -> None:
        """Count a prompt, given by all its sequence hashes, root first. O(log blocks) for packed
        hashes.
        """

    def weight(self, now: float, /) -> float:
        """Return what a request of this moment counts; start the scale anew before it overflows."""

    def total(self) -> float:
        """Return what all requests count."""

    def rows(self) -> list[tuple[int, int, int, int, float, float]]:
        """Return key, parent, depth, visits, weight and cached weight of each node, in the order in
        which they came.
        """

@final
class RoundRobinShadow:
    """Sends prompts to one worker after the other, in thought, and counts what that one holds.

    Each cache holds the prompts sent there, least recently used blocks leave first. So it is
    compared with what round robin itself would have cached, not with the caches that another
    policy left behind. Answers are not put into the caches; evictions are those of prompts alone.

    Where `replicas` routers share the workers, each sees only its part of the requests. It then
    models so many workers fewer, for each to be sent as much as in truth: the others' requests are
    taken to be like its own. A turn that falls to a worker not modelled is not counted.

    An entry stands for 8 blocks, or for more, doubled until the caches of the fleet together fit
    into `max_entries`. Behind 128 blocks of a prompt gaps grow with the depth, to an eighth of it.
    """

    def __new__(cls, max_entries: int) -> Self:
        """Make one that has seen nothing. Raises `ValueError` for less than 1 entry."""

    def route(
        self, hashes: Sequence[int], workers: int, worker_blocks: int, replicas: float = 1.0
    ) -> int | None:
        """Send a prompt to the next of `workers`; return how many of its blocks were cached there.

        None when its turn falls to a worker that is not modelled.
        `hashes` are all its sequence hashes, root first; `worker_blocks` is a worker's cache, 0
        for unknown, which counts as 16,384. Exact to half a stride, deeper than 128 blocks to an
        eighth, and for a prompt that came before. O(log blocks), about 0.05 us an entry.
        """

    def entries(self) -> int:
        """Return how many entries all caches hold."""

# ---- decide: formulas, forecasts, courses, the decider ----

_Forecast: TypeAlias = tuple[WorkerId, float, float, float, float, float]
"""A worker's, in the order of `core.routing.decision.Forecast`."""

@final
class Formula:
    """A cost formula, ready to run over workers.

    `price` is the formula, `failure` what is added where requests fail, both as
    `core.cost.expression.Step` says; a weight is its place among the weights. Raises `ValueError`
    for a term that the core does not know, and for a program that is too long.
    """

    def __new__(cls, price: tuple[Step, ...], failure: tuple[Step, ...]) -> Self: ...

@final
class TimeErrors:
    """How far predicted times are off, learned: the ratio of actual to predicted time is taken to
    be log-logistic, its logarithm's mean and spread are decayed over some 700 samples.
    """

    def __new__(cls) -> Self: ...
    def learn(self, predicted_ms: float, actual_ms: float, /) -> None:
        """Take one prediction and what came of it. Nothing is learned of what is not finite."""

    def chance_above(self, predicted_ms: float, limit_ms: float, /) -> float:
        """Return the chance, 0..1, that what is predicted takes longer than `limit_ms`."""

    def longest(self, limit_ms: float, chance: float, /) -> float:
        """Return the prediction, ms, that stays within `limit_ms` with `chance`, which counts as at
        least 1 % and at most 99 %; negative where none does.
        """

    @property
    def samples(self) -> float: ...
    @property
    def bias(self) -> float:
        """Return the typical ratio of actual to predicted times."""

    @property
    def spread(self) -> float:
        """Return the standard deviation of the ratio's logarithm."""

@final
class Forecasts:
    """What is expected of one request with targets at each worker, once it was decided on.

    Targets are None where there is none. `waited_ms` are over since it came. A worker is in time
    whose chance to miss a target is within `slack` of the least. Where each worker's chance to meet
    them is below `least`, `hopeless` is raised; None: it is not. `coming` is the time until the
    first token, `own` that of its prefill alone. Raises `ValueError` for times with weights.
    """

    def __new__(
        cls,
        ttft_ms: float | None,
        tpot_ms: float | None,
        waited_ms: float,
        slack: float,
        least: float,
        coming: Formula,
        own: Formula,
        ttft_errors: TimeErrors,
        tpot_errors: TimeErrors,
        hopeless: type[BaseException] | None,
    ) -> Self: ...
    def all(self) -> tuple[_Forecast, ...]:
        """Return those of all workers that it was decided among; () before."""

    def at(self, worker: str, /) -> _Forecast | None:
        """Return that of one worker, None where it was none of them."""

@final
class Course:
    """What requests are decided by: a mode, a formula with its weights, and how equals are taken.

    `formula`: a `Formula`, or what takes (cost, terms) of all candidates and returns their costs,
    less is better. Costs within `margin` of the least are equal. `maker` makes a `Decision` of a
    record; `draw` takes the costs and returns the place to take, None: the least is taken.
    Raises `ValueError` for a mode that there is not, or too few weights.
    """

    def __new__(
        cls,
        mode: str,
        uses_caches: bool,
        formula: Formula | Callable[[list[tuple[float, Terms]]], list[float]] | None,
        weights: tuple[float, ...],
        margin: float,
        policy: str,
        maker: Callable[[Record], Decision],
        draw: Callable[[list[float]], int] | None,
        /,
    ) -> Self: ...
    @property
    def uses_caches(self) -> int:
        """Whether caches count."""

@final
class Placed:
    """A request that was decided and is on its way; made by `Decider.decide`."""

    @property
    def record(self) -> Record:
        """What the log keeps of it."""
    @property
    def booking(self) -> Booking | None:
        """Its booking, live or not; None: another request has its id."""
    @property
    def request_id(self) -> str:
        """The name of its booking."""
    @property
    def model(self) -> str:
        """The model's name."""
    @property
    def hashes(self) -> Hashes | None:
        """Its prompt's hashes; None where nothing was hashed, and after the first token."""
    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
    @property
    def expected_output_tokens(self) -> int:
        """Tokens that its answer is expected to have."""
    @property
    def choices(self) -> int:
        """Answers to the one prompt."""
    event_tokens: int
    """Tokens of its prompt that its worker's events had told of, -1 where that proves nothing."""
    @property
    def streams(self) -> bool:
        """Whether its answer comes in pieces."""
    @property
    def waiting(self) -> bool:
        """Whether no token was seen."""
    @property
    def families(self) -> Families:
        """Of its prompt, the widest first."""
    @property
    def teaches(self) -> bool:
        """Whether no events tell what its worker caches, and no answer was learned from yet."""
    @property
    def unseen_s(self) -> float:
        """For how long tokens came that nobody could count."""
    @property
    def sent_s(self) -> float:
        """When it was recorded; NaN: not yet."""
    @property
    def prefilled(self) -> bool:
        """Whether another worker computed the prompt."""
    @property
    def approximate(self) -> bool:
        """Whether no event can confirm its hashes."""
    @property
    def inputs(self) -> Inputs | None:
        """What was asked beside its prompt."""

@final
class Decider:
    """The way of a request through routing: one call to decide, one to finish.

    A prompt counts as cached for `predict_ttl_s` where events will confirm it, for `approx_ttl_s`
    elsewhere. What it decides by is its owner's: changed there, it is changed here. `health` is
    told who was chosen while it is `out`, `late` of prompts that are not believed cached yet.
    """

    @property
    def decisions(self) -> int:
        """How many were booked."""
    @property
    def overlap_blocks(self) -> int:
        """Blocks of prompts that were found cached."""
    @property
    def request_blocks(self) -> int:
        """Blocks of prompts."""
    def __new__(
        cls,
        *,
        sequences: ActiveSequences,
        speeds: Speeds,
        lengths: object,
        distrusted: set[WorkerId],
        out: set[str],
        health: object,
        random: Callable[[], float],
        replica: str,
        routed: object | None,
        index: object | None,
        late: object,
        late_workers: dict[WorkerId, int],
        late_waiting: dict[WorkerId, dict[str, tuple[Booking, int]]],
        smallest_tree_ties: bool,
        predict_ttl_s: float,
        approx_ttl_s: float,
    ) -> Self: ...
    def follow(self, course: Course, /) -> None:
        """Decide by this course from now on."""
    def resize(self, block_size: int, /) -> None:
        """Decide by blocks of so many tokens."""
    def look_for(self, sizes: tuple[int, ...], /) -> None:
        """Look for what workers tell in blocks of further sizes, tokens: 8 at most. Raises
        `ValueError`.
        """
    def listen(self, hints: object | None, /) -> None:
        """Believe what others tell of their decisions, too: an `Approx`."""
    def log(
        self,
        ring: object,
        totals: object,
        tokens: object,
        phases: tuple[Histogram, Histogram, Histogram, Histogram],
        begun: Callable[[Placed, int, float], bool],
        /,
    ) -> None:
        """Write to a log from now on; `phases` count seconds of hashing, finding, scoring, and of
        all of it, `begun` is told of first tokens of requests with inputs.
        """
    def publish_to(self, outbox: object | None, /) -> None:
        """Have a BookingOutbox told of bookings from now on; None: nobody."""
    def decide(
        self,
        scanned: Scanned,
        packed: bytes | memoryview | None,
        request_id: bytes,
        tenant: str,
        cohort: tuple[WorkerState, ...],
        now: float,
        whole: bool,
        name: str | None,
        course: Course | None,
        states: tuple[WorkerState, ...] | None,
        output: int,
        most_wait_ms: float,
        root: int,
        inputs: Inputs | None,
        affinity: int,
        keep_s: int,
        /,
    ) -> Placed | float | None:
        """Choose among `states` of a `cohort`, book and record.

        Return what was placed, None for what has to go another way, the wait, ms, where that is
        longer than `most_wait_ms`.
        """
    def choose(
        self,
        request_id: bytes,
        hashes: Hashes,
        packed: array[int],
        ids: bytes | memoryview | None,
        prompt_tokens: int,
        output_tokens: int,
        cohort: tuple[WorkerState, ...],
        states: tuple[WorkerState, ...],
        now: float,
        whole: bool,
        course: Course,
        inputs: Inputs | None,
        prefilled: bool,
        likeliest: bool,
        affinity: int,
        /,
    ) -> Record:
        """Choose among `states` of a `cohort` and return what a log would keep of it; nothing is
        booked. `likeliest`: nothing is drawn. Raises what the hooks of `inputs` and `course` raise.
        """
    def runners_up(self, states: tuple[WorkerState, ...], most: int, /) -> list[WorkerId] | None:
        """Return who would have been chosen next, the chosen one first; None: the last decision was
        not among `states`, or not by cost.
        """
    def seen(self, placed: Placed, tokens: int, now: float, /) -> bool:
        """Take the tokens of an answer so far; return whether they were the first."""
    def book(
        self,
        record: Record,
        request: RouteRequest,
        packed: array[int],
        course: Course,
        inputs: Inputs | None,
        now: float,
        /,
    ) -> Placed:
        """Book what `choose` chose by a course, and believe the prompt cached there; it is not
        recorded.
        """
    def enter(
        self, placed: Placed, request_id: bytes, tenant: str, again: Record | None, now: float, /
    ) -> None:
        """Record what was booked, under the id that its client knows. `again` is the record of the
        attempt before, which stands for this one from now on; None: it is the first.
        """
    def begin(self, request_id: str, now: float, /) -> Booking | None:
        """Take a booking's first token, which teaches no speed; return the booking if it is."""
    def grow(self, request_id: str, tokens: int, now: float, /) -> None:
        """Take the tokens of an answer so far."""
    def release(self, request_id: str, served: bool, now: float, /) -> Booking | None:
        """Release a booking and return it; None if it is not live. What was `served` teaches how
        long that takes, and is believed cached.
        """
    def free(self, placed: Placed, served: bool, now: float, /) -> Booking | None:
        """Do as `release` for a request that was decided here."""
    def learn(
        self,
        placed: Placed,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        now: float,
        /,
    ) -> None:
        """Correct what is believed of the worker of what `teaches` by the engine's counts, once.

        Where it counts the prompt's tokens otherwise than the router, what is cached of it is the
        same share. Raises `ValueError` for what does not teach. O(blocks) and, amortised, of what
        is forgotten.
        """
    def prefilled_s(self, booking: Booking, /) -> float:
        """Return when the prefill of a released booking is taken to have ended."""
    def finish(
        self,
        placed: Placed,
        served: bool,
        state: State,
        status: int,
        usage: Usage | None,
        now: float,
        /,
    ) -> tuple[Booking | None, bool]:
        """Record the end. What was `served` is released by it: return the booking, that once, else
        None, and whether nothing speaks against its worker.
        """
