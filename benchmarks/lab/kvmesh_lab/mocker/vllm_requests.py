"""What vLLM's OpenAI server reads of a generation request, and how it words its refusals.

Fields that change nothing for an engine without a model (temperature, tools beyond their place in
the prompt, response formats) are skipped; those whose answer could only be made up are refused.
Source: vllm/entrypoints/openai/{chat_completion,completion}/protocol.py (0.32).
"""

from http import HTTPStatus
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from kvmesh.core.chat.chat import ChatInput
from kvmesh.errors import RequestError
from kvmesh_lab.mocker.media import Medium, Noted
from kvmesh_lab.mocker.model.answer import StopRules

MAX_CHOICES: Final = 64
"""Answers to one prompt, and prompts in one request, at most."""

NonNegative = Annotated[int, msgspec.Meta(ge=0)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Prompt = str | list[TokenId]
Kind = Literal["chat", "completion", "responses", "messages", "embedding", "embedding-base64"]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationBody(msgspec.Struct):
    """The fields all endpoints share."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: NonNegative = 0
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    echo: bool | None = False
    logprobs: bool | int | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool = False
    return_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    truncate_prompt_tokens: int | None = None
    vllm_xargs: dict[str, object] | None = None
    kv_transfer_params: dict[str, object] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None


class _ChatBody(GenerationBody):
    max_completion_tokens: int | None = None


class _CompletionBody(GenerationBody):
    max_tokens: int | None = 16
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    prompt_embeds: object = None
    suffix: str | None = None


class GenerationRequest(msgspec.Struct, frozen=True):
    """One request, checked. A dialogue has its one prompt in `chat`, the others in `prompts`.
    `media` are those in the chat.

    `max_tokens` is None for "as many as fit"; `rules` has its own filled in by `limited_rules`.
    """

    kind: Kind
    model: str | None
    max_tokens: int | None
    rules: StopRules
    chat: ChatInput | None = None
    media: tuple[Medium, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    choices: int = 1
    seed: int = 0
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    add_special_tokens: bool = True
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    keep_last_tokens: int | None = None
    report_cached: bool = False
    transfer: dict[str, object] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None

    def limited_rules(self, max_tokens: int) -> StopRules:
        """Return the stop rules with the limit that fits the prompt."""
        return msgspec.structs.replace(self.rules, max_tokens=max_tokens)


_chats = msgspec.json.Decoder(_ChatBody)
_completions = msgspec.json.Decoder(_CompletionBody)


def parse_chat(body: bytes, *, sees: bool = False) -> GenerationRequest:
    """Return the chat request in `body`, up to the first media of a model that does not see any.

    Raises `RequestError` naming the field.
    """
    parsed = decode_body(_chats, body)
    limit = parsed.max_tokens
    if parsed.max_completion_tokens is not None:
        limit = parsed.max_completion_tokens
    noted = Noted(sees=sees)
    chat = ChatInput.from_body(body, noted.keep)
    _refuse(bool(noted.media) and parsed.truncate_prompt_tokens is not None, "truncated media")
    made = build_request("chat", parsed, limit, chat, ())
    return msgspec.structs.replace(made, media=tuple(noted.media))


def parse_completion(body: bytes) -> GenerationRequest:
    """Return the completion request in `body`. Raises `RequestError` naming the field."""
    parsed = decode_body(_completions, body)
    _refuse(parsed.prompt_embeds is not None, "prompt_embeds")
    _refuse(bool(parsed.suffix), "suffix")
    if not parsed.prompt:
        raise RequestError(
            "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt"
        )
    prompts = read_prompts(parsed.prompt, "prompt")
    return build_request("completion", parsed, parsed.max_tokens, None, prompts)


_AnyBody = TypeVar("_AnyBody", bound=GenerationBody)


def decode_body(decoder: msgspec.json.Decoder[_AnyBody], body: bytes) -> _AnyBody:
    """Return the body's fields. Raises `RequestError` naming the first that is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = path.strip("`.").partition(".")[0].partition("[")[0]
        raise RequestError(f"{field or 'body'}: {text}", param=field or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error


def _refuse(unsupported: bool, field: str) -> None:
    if unsupported:
        raise RequestError(f"{field} cannot be simulated: there is no model behind", param=field)


def read_prompts(
    prompt: str | list[str | TokenId | list[TokenId]], field: str
) -> tuple[Prompt, ...]:
    """Return the prompts of `field`: one text, one list of ids, or several of either.

    Raises `RequestError`.
    """
    if isinstance(prompt, str):
        return (prompt,)
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return (ids,)
    several = tuple(item for item in prompt if not isinstance(item, int))
    if ids or not all(several):
        raise RequestError(f"{field}: a text, token ids, or a list of either", param=field)
    if len(several) > MAX_CHOICES:
        raise RequestError(f"{field}: at most {MAX_CHOICES} prompts in one request", param=field)
    return several


def build_request(
    kind: Kind,
    body: GenerationBody,
    max_tokens: int | None,
    chat: ChatInput | None,
    prompts: tuple[Prompt, ...],
) -> GenerationRequest:
    """Return the request of a body whose prompt was read. Raises `RequestError`."""
    _refuse(bool(body.echo), "echo")
    _refuse(body.logprobs is not None and body.logprobs is not False, "logprobs")
    _refuse(body.prompt_logprobs is not None, "prompt_logprobs")
    _refuse(body.use_beam_search, "use_beam_search")
    choices = 1 if body.n is None else body.n
    if not 1 <= choices <= MAX_CHOICES:
        raise RequestError(f"n must be between 1 and {MAX_CHOICES}, got {choices}.", param="n")
    if max_tokens is not None and max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    if max_tokens is not None and body.min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got "
            f"{body.min_tokens}.",
            param="min_tokens",
        )
    if body.cache_salt == "":
        raise RequestError("`cache_salt` must be a non-empty string.", param="cache_salt")
    options = body.stream_options or _StreamOptions()
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.", param="stream_options"
        )
    xargs = body.vllm_xargs or {}
    session = body.session_id or xargs.get("session_id")
    return GenerationRequest(
        kind=kind,
        model=body.model,
        max_tokens=max_tokens,
        rules=_rules(body),
        chat=chat,
        prompts=prompts,
        choices=choices,
        seed=body.seed or 0,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        add_special_tokens=body.add_special_tokens is not False,
        cache_salt=body.cache_salt,
        request_id=body.request_id,
        session_id=session if isinstance(session, str) else None,
        keep_last_tokens=body.truncate_prompt_tokens,
        report_cached=xargs.get("kv_cache_report_mode") == "full",
        transfer=body.kv_transfer_params,
        bootstrap_host=body.bootstrap_host,
        bootstrap_port=body.bootstrap_port,
        bootstrap_room=body.bootstrap_room,
    )


def _rules(body: GenerationBody) -> StopRules:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if "" in stop:
        raise RequestError("stop cannot contain an empty string.", param="stop")
    return StopRules(
        max_tokens=0,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop=tuple(stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        include_stop_str_in_output=body.include_stop_str_in_output,
    )


def output_limit(request: GenerationRequest, prompt_tokens: int, max_model_len: int) -> int:
    """Return how many tokens one answer may have. Raises `RequestError` in vLLM's words."""
    wanted = request.max_tokens
    if wanted is not None and wanted > max_model_len:
        raise RequestError(
            f"max_tokens={wanted} cannot be greater than max_model_len={max_model_len}. Please "
            "request fewer output tokens.",
            param="max_tokens",
        )
    if prompt_tokens > max_model_len:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {prompt_tokens} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    room = max_model_len - prompt_tokens
    if room < 1:
        raise RequestError(f"max_tokens must be at least 1, got {room}.", param="max_tokens")
    return room if wanted is None else min(wanted, room)


def error_body(error: RequestError) -> bytes:
    """Return a refusal as vLLM's JSON; a 400 or 404 has a type of its own, others the phrase."""
    names = {400: "BadRequestError", 404: "NotFoundError"}
    if error.param is None and error.status != HTTPStatus.BAD_REQUEST:
        kind = HTTPStatus(error.status).phrase
    else:
        kind = names.get(error.status, HTTPStatus(error.status).phrase)
    inner = {"message": str(error), "type": kind, "param": error.param, "code": error.status}
    return msgspec.json.encode({"error": inner})
