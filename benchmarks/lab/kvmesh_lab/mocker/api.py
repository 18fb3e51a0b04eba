"""The HTTP endpoints of the pretend vLLM.

Source: vllm/entrypoints/{openai,serve}/**/api_router.py (0.32).
"""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from urllib.parse import parse_qs

import msgspec

from kvmesh.app.prompts.tokenizer import Tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.byte_tokenizer import check_ids
from kvmesh.core.prompts.media_tokens import Span
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh_lab.mocker.dialogues import parse_embeddings, parse_messages, parse_responses
from kvmesh_lab.mocker.engine import EngineRunner
from kvmesh_lab.mocker.faults import PATH as FAULTS_PATH
from kvmesh_lab.mocker.faults import FaultDesk
from kvmesh_lab.mocker.media import Medium, Noted, rendered
from kvmesh_lab.mocker.metrics import EngineMetrics
from kvmesh_lab.mocker.service import VERSION, GenerationService
from kvmesh_lab.mocker.vllm_requests import (
    GenerationRequest,
    error_body,
    parse_chat,
    parse_completion,
)

PROMETHEUS: Final = b"text/plain; version=1.0.0; charset=utf-8"
OCTETS: Final = b"application/octet-stream"

Route = Callable[[Exchange], None]


class _TokenizeBody(msgspec.Struct):
    prompt: str | None = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class _DetokenizeBody(msgspec.Struct):
    tokens: list[int]


_Body = TypeVar("_Body", _TokenizeBody, _DetokenizeBody)


class MockerApi:
    """Routes requests. `sources` describes each rank's event publisher, as vLLM words it."""

    def __init__(
        self,
        service: GenerationService,
        tokenizer: Tokenizer,
        ranks: Mapping[int, EngineRunner],
        metrics: EngineMetrics,
        sources: Mapping[str, object],
        faults: FaultDesk,
    ) -> None:
        self._service = service
        self._faults = faults
        self._tokenizer = tokenizer
        self._ranks = ranks
        self._metrics = metrics
        self._sources = sources
        self._created = int(time.time())
        self._sees = sees = tokenizer.sees_media
        self._routes: dict[str, dict[str, Route]] = {
            "/v1/chat/completions": {"POST": self._serving(partial(parse_chat, sees=sees))},
            "/v1/chat/completions/render": {"POST": self._render},
            "/v1/completions": {"POST": self._serving(parse_completion)},
            "/v1/responses": {"POST": self._serving(partial(parse_responses, sees=sees))},
            "/v1/messages": {"POST": self._serving(partial(parse_messages, sees=sees))},
            "/v1/embeddings": {"POST": self._serving(parse_embeddings)},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": faults.health},
            "/ping": {"GET": _empty, "POST": _empty},
            "/version": {"GET": lambda exchange: _json(exchange, {"version": VERSION})},
            "/metrics": {"GET": self._metrics_page},
            "/load": {"GET": self._load},
            "/kv_event_sources": {"GET": lambda exchange: _json(exchange, self._sources)},
            "/reset_prefix_cache": {"POST": self._reset},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/kvmesh/dump": {"GET": self._dump},
            FAULTS_PATH: {"GET": faults.show, "POST": faults.change},
        }

    def handle(self, exchange: Exchange) -> None:
        """Serve one request."""
        if not self._faults.answers(exchange):
            return
        try:
            self._find(exchange)(exchange)
        except RequestError as error:
            exchange.respond(error.status, error_body(error))

    def _find(self, exchange: Exchange) -> Route:
        methods = self._routes.get(exchange.request.path)
        if methods is None:
            raise RequestError("Not Found", status=404)
        route = methods.get(exchange.request.method)
        if route is None:
            raise RequestError("Method Not Allowed", status=405)
        return route

    def _serving(self, parse: Callable[[bytes], GenerationRequest]) -> Route:
        def serve(exchange: Exchange) -> None:
            reply = self._faults.admit(exchange)
            if reply is None:
                return
            try:
                self._service.serve(reply, parse(exchange.request.body))
            except RequestError as error:
                reply.respond(error.status, error_body(error))

        return serve

    def _models(self, exchange: Exchange) -> None:
        models = self._service.models
        names = (models.base, *models.aliases)
        cards = [self._card(name, None, models.max_model_len) for name in names]
        cards += [self._card(name, models.base, None) for name in models.adapters]
        _json(exchange, {"object": "list", "data": cards})

    def _card(self, name: str, parent: str | None, max_model_len: int | None) -> dict[str, object]:
        permission = {
            "id": f"modelperm-{name}",
            "object": "model_permission",
            "created": self._created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": max_model_len,
            "permission": [permission],
        }

    def _metrics_page(self, exchange: Exchange) -> None:
        exchange.respond(200, self._metrics.page(), content_type=PROMETHEUS)

    def _load(self, exchange: Exchange) -> None:
        _json(exchange, {"server_load": self._service.open_requests})

    def _reset(self, exchange: Exchange) -> None:
        done = [runner.reset_prefix_cache() for runner in self._ranks.values()]
        _json(exchange, {"success": all(done)})

    def _tokenize(self, exchange: Exchange) -> None:
        body = _decode(exchange.request.body, _TokenizeBody)
        if bytes(body.messages):
            ids, _, _ = self._encode_chat(exchange)
        elif body.prompt is not None:
            special = body.add_special_tokens
            ids = self._tokenizer.encode(body.prompt, add_special_tokens=special)
        else:
            raise RequestError("prompt or messages is missing", param="prompt")
        texts = [self._tokenizer.decode([i]) for i in ids] if body.return_token_strs else None
        _json(
            exchange,
            {
                "count": len(ids),
                "max_model_len": self._service.models.max_model_len,
                "tokens": ids.tolist(),
                "token_strs": texts,
            },
        )

    def _encode_chat(
        self, exchange: Exchange
    ) -> "tuple[array[int], Sequence[Medium], Sequence[Span]]":
        noted = Noted(sees=self._sees)
        chat = ChatInput.from_body(exchange.request.body, noted.keep)
        ids, spans = self._service.encode_chat(chat, noted.media)
        return ids, noted.media, spans

    def _render(self, exchange: Exchange) -> None:
        _json(exchange, rendered(*self._encode_chat(exchange)))

    def _detokenize(self, exchange: Exchange) -> None:
        tokens = _decode(exchange.request.body, _DetokenizeBody).tokens
        check_ids(tokens, self._tokenizer.vocab_size)
        _json(exchange, {"prompt": self._tokenizer.decode(tokens)})

    def _dump(self, exchange: Exchange) -> None:
        """Answer the content hashes of the blocks of rank `?rank=` (0) as packed u64s."""
        named = parse_qs(exchange.request.query).get("rank", ["0"])[0]
        runner = self._ranks.get(int(named) if named.isdigit() else -1)
        if runner is None:
            raise RequestError(f"there is no rank {named}", param="rank")
        exchange.respond(200, runner.dump(), content_type=OCTETS)


def _decode(body: bytes, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"body: {error}", param="body") from error


def _json(exchange: Exchange, value: object) -> None:
    exchange.respond(200, msgspec.json.encode(value))


def _empty(exchange: Exchange) -> None:
    exchange.respond(200, b"")
