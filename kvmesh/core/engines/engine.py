"""The seam between kvmesh and a kind of engine: all that is peculiar to one, in one value.

An `Engine` is made of plain functions and words and does no I/O. What a kind leaves out is as for
an engine nobody knows. `registry` lists the kinds; nothing else names one.
"""

from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from kvmesh.core.chat.chat import ChatInput, KeepMedia, keep_none
from kvmesh.core.chat.forms import chat_of_turns
from kvmesh.core.chat.inference import Parsed
from kvmesh.core.chat.prompt_form import ReadForm, any_form
from kvmesh.core.chat.template_call import ChatShape, TemplateCall, TemplateTraits
from kvmesh.core.engines.engine_events import EngineBatch
from kvmesh.core.engines.facts import EngineFacts, Identity, Interview
from kvmesh.core.engines.fetch import Fetch
from kvmesh.core.engines.handshake import Connector
from kvmesh.core.engines.load import EngineFigures, Gauge, LoadStream


class PromptIds(msgspec.Struct, frozen=True):
    """How an engine is asked which token ids it made of a prompt, and where it tells them.

    `fields` (JSON by name) and `headers` are put into a request. `read` takes an answer or a
    stream's chunk (JSON) and returns None when it holds none. `since`: the first version to tell.
    """

    read: Callable[[bytes], list[int] | None]
    fields: Mapping[str, bytes] = {}
    headers: tuple[tuple[bytes, bytes], ...] = ()
    since: str = ""


class Words(msgspec.Struct, frozen=True):
    """What `kvmesh doctor` says of a kind. Versions are numbers; empty: of no matter here.

    `publish` starts it with KV events, `cache` with a prefix cache, `larger_blocks` with more than
    one token a block, `report_cached` makes it report cached tokens, `tell_names` the names it
    gives media. Versions up to `newest_read` were read by who wrote this.
    """

    oldest_with_events: tuple[int, ...] = ()
    oldest_that_lists: tuple[int, ...] = ()
    newest_read: tuple[int, ...] = ()
    publish: str = ""
    cache: str = ""
    larger_blocks: str = ""
    report_cached: str = ""
    tell_names: str = ""


def unknown_load(_host: str = "") -> Interview[None]:
    """Ask nothing and learn nothing."""
    yield from ()


def plain_chat(chat: ChatInput, template: TemplateTraits) -> TemplateCall:
    """Return the chat as it came."""
    # Chat templates need jinja2, 8 MB and 40 ms: who renders no chat, a sidecar, does not pay them.
    from kvmesh.core.engines.chat import transformers_call  # noqa: PLC0415 - see above

    return transformers_call(chat, template)


def plain_turns(parsed: Parsed, kind: str, _keep: KeepMedia = keep_none) -> ChatInput:
    """Return the turns of a `messages` or `responses` body as they came, up to the first media."""
    if kind == "responses":
        return chat_of_turns(parsed.input, parsed.instructions, parsed.tools)
    return chat_of_turns(cast("msgspec.Raw", parsed.messages), parsed.system, parsed.tools)


def rank_headers(rank: int) -> tuple[tuple[bytes, bytes], ...]:
    """Return what takes a request to one data-parallel rank behind an engine's URL."""
    return ((b"x-data-parallel-rank", b"%d" % rank),)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of engine. `name` is what flags and facts call it, `title` what messages do.

    `recognise` asks what the engine on that host says of itself, None if it is another kind;
    `identify` asks for what `kvmesh doctor` wants to know. `chat` shapes a chat for the template;
    of a text it sees only whether it is blank, and whether one of `chat_marks` is in it. `turns`
    makes chats of the other APIs' bodies, with the media that are kept (raises `RequestError`),
    `form` says what it makes of unusual wishes for a prompt.
    `decode_events` reads a batch of KV events (raises `CodecError`) where the common dialect does
    not do; `tiers` are names of media besides the common ones, 0 the device, 2 the farthest.
    `gauges` are the series of /metrics to read, `read_loads` reads the page of
    `EngineFacts.load_path` into figures by rank (raises `CodecError`), `load_stream` a stream.
    `connectors` are the ways a prefill and a decode worker share a request, the usual one first.
    `rank_headers` take a request to one data-parallel rank. `fetches` are its ways, by name, to
    take a prefix from another worker's cache. `salt_fields`
    of a body are those by which a client divides its own cached blocks from others', the first is
    the one that routers set; `foreign_fields` name what belongs to other requests, and those within
    one of `nested_fields` count as if they stood in the body. `unsalted_paths` are where it takes
    no salt; "/" stands for all. `caches_late`: its cache counts a prompt once it is prefilled, not
    from when it is scheduled. `stream_ids`: its streams tell token ids when asked
    (`return_token_ids`). `names_media`: a chat's part of media may bring the name (`uuid`) that its
    blocks are keyed by, and it tells what stands for it (`probe_request.media_question`).
    """

    name: str
    title: str
    recognise: Callable[[str], Interview[EngineFacts | None]] = unknown_load
    identify: Callable[[], Interview[Identity | None]] = unknown_load
    chat: ChatShape = plain_chat
    chat_marks: tuple[str, ...] = ()
    turns: Callable[[Parsed, str, KeepMedia], ChatInput] = plain_turns
    form: ReadForm = any_form
    decode_events: Callable[[bytes], EngineBatch] | None = None
    tiers: Mapping[str, int] = {}
    gauges: Mapping[str, tuple[Gauge, ...]] = {}
    read_loads: Callable[[bytes], Mapping[int, EngineFigures]] | None = None
    load_stream: LoadStream | None = None
    connectors: tuple[Connector, ...] = ()
    fetches: Mapping[str, Fetch] = {}
    rank_headers: Callable[[int], tuple[tuple[bytes, bytes], ...]] = rank_headers
    prompt_ids: PromptIds | None = None
    words: Words = Words()
    salt_fields: tuple[str, ...] = ()
    foreign_fields: frozenset[str] = frozenset()
    nested_fields: tuple[str, ...] = ()
    unsalted_paths: tuple[str, ...] = ("/",)
    caches_late: bool = False
    stream_ids: bool = False
    names_media: bool = False
