"""Every path that engines serve, who answers it here, and which role of a key it asks for.

Engines: v vLLM 0.33, s SGLang 0.5.23, l llama.cpp's server, o none of them: the API of OpenAI. The
names are those of their sources, of which every one has a row. A path without a row is passed to
some engine by load where it begins with /v1/, for keys that may `operate`, and is a 404 elsewhere.
"""

from itertools import groupby
from typing import Final, Literal

import msgspec

Role = Literal["infer", "view", "operate"]
Owner = Literal[
    "prefix",
    "load",
    "form",
    "home",
    "lists",
    "fleet",
    "websocket",
    "operate",
    "router",
    "refused",
]
OWNERS: Final[dict[Owner, str]] = {
    "prefix": "the worker where the prompt costs least",
    "load": "the least loaded worker of the model",
    "form": "the least loaded worker of the model that the form or the query names",
    "home": "the worker that keeps what the id names; all are asked where it is not known",
    "lists": "all workers, whose lists are put together",
    "fleet": "all workers, with an answer of each",
    "websocket": "a worker of the model, by WebSocket",
    "operate": "all workers, which are changed by it",
    "router": "the router itself, for all of its workers",
    "refused": "nobody: an error that gives the reason",
}
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
NOT_ALLOWED: Final = 405
NOT_BUILT: Final = 501


class PathRow(msgspec.Struct, frozen=True):
    """One path: `{}` in it is any one segment. `role` None asks for no key. `status` and `why` are
    those of a refusal.
    """

    path: str
    owner: Owner
    methods: frozenset[str]
    engines: str
    role: Role | None
    status: int = 0
    why: str = ""


_READ: Final = frozenset({"GET", "HEAD"})
_LONE: Final = "it acts on one engine alone: send it to that engine"
_POST: Final = "it is another name of a POST: send POST"
_BYPASS: Final = "it is not routed by what caches hold: send POST "


def _rows(
    owner: Owner, role: Role | None, methods: str, paths: str, refusal: tuple[int, str] = (0, "")
) -> list[PathRow]:
    """Return a row for each of `paths`, "ENGINES:PATH" with spaces between."""
    named = frozenset(methods.split()) | (_READ if "GET" in methods else frozenset())
    pairs = (one.partition(":") for one in paths.split())
    return [PathRow(path, owner, named, engines, role, *refusal) for engines, _, path in pairs]


ROWS: Final[tuple[PathRow, ...]] = (
    *_rows(
        "prefix",
        "infer",
        "POST",
        "vsl:/v1/chat/completions vsl:/v1/completions vsl:/v1/responses vsl:/v1/messages "
        "vsl:/v1/embeddings",
    ),
    *_rows(
        "load",
        "infer",
        "POST",
        "vsl:/v1/messages/count_tokens v:/v1/audio/speech s:/v1/images/generations "
        "s:/v1/actions/generations o:/v1/moderations o:/v1/pooling s:/v1/classify vsl:/v1/rerank "
        "vs:/v1/score s:/v1/tokenize s:/v1/detokenize v:/v1/chat/completions/batch "
        "v:/v1/chat/completions/render v:/v1/chat/completions/derender v:/v1/completions/render "
        "v:/v1/completions/derender v:/v1/messages/render v:/v1/responses/render "
        "l:/v1/chat/completions/input_tokens l:/v1/responses/input_tokens l:/v1/reranking "
        "vs:/v1/systemone",
    ),
    *_rows(
        "load",
        "infer",
        "POST",
        "vsl:/tokenize vsl:/detokenize vl:/rerank v:/v2/rerank v:/score v:/pooling vs:/classify "
        "v:/v2/embed s:/encode s:/generate v:/inference/v1/generate vs:/invocations "
        "s:/rollout/generate v:/generative_scoring l:/infill l:/apply-template "
        "s:/parse_function_call s:/separate_reasoning",
    ),
    *_rows("load", "infer", "GET POST", "vs:/ping"),
    *_rows(
        "form",
        "infer",
        "POST",
        "vsl:/v1/audio/transcriptions v:/v1/audio/translations s:/v1/images/edits",
    ),
    *_rows(
        "lists",
        "infer",
        "GET",
        "o:/v1/files o:/v1/batches o:/v1/vector_stores s:/v1/videos s:/v1/meshes",
    ),
    *_rows(
        "form",
        "infer",
        "POST",
        "o:/v1/files o:/v1/batches o:/v1/vector_stores o:/v1/conversations s:/v1/videos "
        "s:/v1/meshes",
    ),
    *_rows(
        "home",
        "infer",
        "GET DELETE",
        "vs:/v1/responses/{} o:/v1/files/{} s:/v1/videos/{} s:/v1/meshes/{}",
    ),
    *_rows(
        "home",
        "infer",
        "GET",
        "o:/v1/batches/{} o:/v1/files/{}/content s:/v1/videos/{}/content s:/v1/meshes/{}/content "
        "o:/v1/responses/{}/input_items",
    ),
    *_rows("home", "operate", "GET", "s:/v1/images/{}/content"),
    *_rows("home", "infer", "POST", "vs:/v1/responses/{}/cancel o:/v1/batches/{}/cancel"),
    *_rows("home", "infer", "GET POST DELETE", "o:/v1/conversations/{} o:/v1/vector_stores/{}"),
    *_rows("home", "infer", "GET POST", "o:/v1/conversations/{}/items"),
    *_rows("fleet", "infer", "GET", "v:/version"),
    *_rows(
        "fleet",
        "operate",
        "GET",
        "v:/load s:/v1/loads l:/props o:/v1/props l:/slots vs:/server_info s:/get_server_info "
        "s:/model_info s:/get_model_info v:/weight_info v:/is_sleeping v:/is_paused "
        "s:/is_scaling_elastic_ep v:/get_world_size v:/tokenizer_info v:/kv_event_sources "
        "v:/fault_tolerance/status l:/lora-adapters l:/cvectors s:/list_external_corpora "
        "s:/hicache/storage-backend s:/get_hicache_l3_cache_layout s:/stats s:/v1/model_info "
        "s:/v1/list_loras s:/v1/actions/metadata",
    ),
    *_rows(
        "websocket",
        "infer",
        "GET",
        "vs:/v1/realtime s:/v1/actions/realtime s:/v1/realtime_video/generate",
    ),
    *_rows(
        "operate",
        "operate",
        "POST",
        "v:/v1/load_lora_adapter v:/v1/unload_lora_adapter s:/load_lora_adapter "
        "s:/unload_lora_adapter s:/load_lora_adapter_from_tensors v:/reset_prefix_cache "
        "v:/reset_mm_cache v:/reset_encoder_cache v:/release_kv_cache_memory v:/sleep v:/wake_up "
        "v:/pause v:/resume s:/pause_generation s:/continue_generation v:/abort_requests "
        "v:/inference/v1/abort_requests s:/abort_request v:/update_weights v:/start_weight_update "
        "v:/finish_weight_update v:/start_draft_weight_update v:/init_weight_transfer_engine "
        "v:/shutdown_weight_transfer_engine vs:/update_weight_version s:/update_weights_from_disk "
        "s:/update_weights_from_tensor s:/update_weights_from_distributed "
        "s:/update_weights_from_ipc s:/begin_weight_update s:/end_weight_update "
        "vs:/scale_elastic_ep s:/flush_cache s:/release_memory_occupation "
        "s:/resume_memory_occupation vs:/start_profile vs:/stop_profile s:/v1/set_lora "
        "s:/v1/merge_lora_weights s:/v1/unmerge_lora_weights s:/get_weights_checksum",
    ),
    *_rows(
        "refused",
        "operate",
        "POST",
        "v:/collective_rpc",
        (FORBIDDEN, "it calls any method of an engine: send it to the engine itself"),
    ),
    *_rows("router", "operate", "GET POST DELETE", "o:/workers"),
    *_rows("router", "operate", "DELETE", "o:/workers/{}"),
    *_rows("router", "operate", "GET", "vsl:/metrics"),
    *_rows("router", None, "GET", "vsl:/health vs:/ready"),
    *_rows("router", "view", "GET", "sl:/"),
    *_rows("router", "infer", "GET", "vsl:/v1/models s:/v1/models/{} vs:/openapi.json"),
    *_rows(
        "refused",
        "operate",
        "POST",
        "l:/chat/completions s:/api/chat",
        (NOT_FOUND, f"{_BYPASS}/v1/chat/completions"),
    ),
    *_rows(
        "refused",
        "operate",
        "POST",
        "l:/completions l:/completion s:/api/generate s:/vertex_generate",
        (NOT_FOUND, f"{_BYPASS}/v1/completions"),
    ),
    *_rows(
        "refused",
        "operate",
        "POST",
        "l:/responses",
        (NOT_FOUND, f"{_BYPASS}/v1/responses"),
    ),
    *_rows(
        "refused",
        "operate",
        "POST",
        "l:/embedding l:/embeddings",
        (NOT_FOUND, f"{_BYPASS}/v1/embeddings"),
    ),
    *_rows(
        "refused",
        "operate",
        "POST",
        "l:/reranking l:/chat/completions/input_tokens l:/responses/input_tokens "
        "l:/audio/transcriptions",
        (NOT_FOUND, "it is served below /v1 alone: put /v1 in front"),
    ),
    *_rows(
        "refused",
        "operate",
        "POST",
        "v:/cohere/v2/chat v:/cohere/v2/chat/render",
        (NOT_FOUND, f"{_BYPASS}/v1/chat/completions"),
    ),
    *_rows(
        "refused",
        "view",
        "POST",
        "vs:/v1/decisions",
        (NOT_ALLOWED, "here it is the list of the router's decisions: use GET"),
    ),
    *_rows(
        "refused",
        "operate",
        "GET DELETE",
        "l:/v1/stream l:/v1/stream/{} l:/v1/streams",
        (NOT_BUILT, "name a stream by x-kvmesh-stream-id and ask for GET /v1/streams/{id}"),
    ),
    *_rows(
        "refused",
        "infer",
        "POST",
        "l:/v1/streams/lookup",
        (NOT_BUILT, "name a stream by x-kvmesh-stream-id and ask for GET /v1/streams/{id}"),
    ),
    *_rows(
        "refused",
        "operate",
        "GET",
        "l:/v1/health sl:/models l:/models/sse s:/api/tags l:/tools l:/cors-proxy v:/readyz "
        "s:/health_generate s:/liveness vs:/docs vs:/docs/oauth2-redirect vs:/redoc",
        (NOT_FOUND, "it tells of one engine: use GET /health, /ready or /v1/models"),
    ),
    *_rows(
        "refused",
        "operate",
        "GET POST PUT DELETE",
        "v:/adapters v:/adapters/{} o:/v1/fine_tuning/jobs l:/v1/chat/completions/control "
        "l:/models/load l:/models/unload s:/api/show s:/open_session s:/close_session "
        "v:/fault_tolerance/apply vs:/weight_checker s:/weights_checker s:/set_internal_state "
        "s:/configure_logging s:/freeze_gc s:/slow_down s:/dumper/{} s:/get_weights_by_name "
        "s:/init_weights_update_group s:/destroy_weights_update_group "
        "s:/init_weights_send_group_for_remote_instance s:/send_weights_to_remote_instance "
        "s:/register_transfer_engine_info s:/get_remote_instance_transfer_engine_info "
        "s:/remote_instance_transfer_engine_info s:/get_transfer_engine_info "
        "s:/start_expert_distribution_record s:/stop_expert_distribution_record "
        "s:/dump_expert_distribution_record s:/set_trace_level s:/pd_role_switch "
        "s:/add_external_corpus s:/remove_external_corpus s:/update_weights_from_tensor_checker "
        "s:/hicache/storage-backend/clear l:/slots/{} l:/cvectors/load l:/cvectors/remove",
        (NOT_BUILT, _LONE),
    ),
    *_rows(
        "refused",
        "operate",
        "POST PUT DELETE",
        "l:/props s:/hicache/storage-backend l:/lora-adapters l:/cvectors "
        "v:/is_scaling_elastic_ep l:/models l:/tools l:/cors-proxy",
        (NOT_BUILT, _LONE),
    ),
    *_rows(
        "refused",
        "infer",
        "PUT",
        "s:/generate s:/classify s:/encode s:/v1/rerank",
        (NOT_ALLOWED, _POST),
    ),
    *_rows(
        "refused",
        "operate",
        "GET",
        "s:/flush_cache s:/release_memory_occupation s:/resume_memory_occupation s:/start_profile "
        "s:/stop_profile",
        (NOT_ALLOWED, _POST),
    ),
    *_rows(
        "refused",
        "operate",
        "GET",
        "s:/openpi/policy",
        (NOT_BUILT, "WebSockets are passed below /v1/ alone: open it at the engine"),
    ),
)

_ROWS: Final[dict[tuple[str, ...], tuple[PathRow, ...]]] = {
    key: tuple(rows)
    for key, rows in groupby(
        sorted(ROWS, key=lambda row: row.path), lambda row: tuple(row.path.split("{}"))
    )
}
"""By what is around the id in a path, or by the whole path."""

PATTERNS: Final = frozenset(key[0] for key in _ROWS if len(key) > 1)
"""What paths begin with that name an id behind it."""


def rows_at(path: str) -> tuple[PathRow, ...]:
    """Return the rows of a path, whatever the method."""
    if (found := _ROWS.get((path,))) is not None:
        return found
    for start in PATTERNS:
        if path.startswith(start):
            name, slash, rest = path.removeprefix(start).partition("/")
            if name and (found := _ROWS.get((start, slash + rest))) is not None:
                return found
    return ()


def find_row(method: str, path: str) -> PathRow | None:
    """Return the row of a request; None for a path without one, and for a method not in its row."""
    return next((row for row in rows_at(path) if method in row.methods), None)
