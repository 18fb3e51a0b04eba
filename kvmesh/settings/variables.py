"""Variables `KVMESH_…` that no command knows: named, as unknown keys of a file and flags are."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Final, get_args, get_origin

from cyclopts import Parameter

from kvmesh.bounds import shown
from kvmesh.errors import ConfigError
from kvmesh.settings.picker import PickerSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings, UpSettings, WorkerSettings
from kvmesh.settings.spellings import FIXED, REMOVED
from kvmesh.settings.types import is_fixed

PREFIX: Final = "KVMESH_"

ROLES: Final = (
    RouterSettings,
    PickerSettings,
    MetaRouterSettings,
    WorkerSettings,
    UpSettings,
)

NO_SETTINGS: Final = frozenset({"CONFIG", "DIE_WITH_PARENT", "API_KEY"})
"""Read elsewhere: the file of settings, which core runs, children of `kvmesh up`, keys of tools."""

_TOOLS: Final = """
ACCOUNT_MAX_BYTES ACCOUNT_MAX_MEMORY_BYTES ADMIN_KEYS BILLER BLOCKS BLOCKS_PER_WORKER BUCKET_BY BY
CAPACITY CAPACITY_SHARE CHECK CLIENT_TIMEOUT_MS CLUSTER COMPARE CONCURRENCY CSV DATA_PARALLEL_SIZE
DETAILS DISK_BLOCKS DISK_GBPS ENABLE_PREFIX_CACHING ENDPOINT ENDPOINTS ENGINE_SPEEDS ENVOY
EVENT_DELAY_MS FAIL FAIL_HEALTH FAIL_SEED FETCH_LATENCY_MS FILE FIRST_PAUSE_S FLAP HANG_HEALTH
HEALTH HOST HOST_BLOCKS HOST_GBPS HTML IGNORE_EOS INSTALL INTERVAL_S JOIN JSON KILL
KV_BYTES_PER_TOKEN KV_EVENTS_PORT KV_REPLAY_PORT LEAVE LIMIT LIST LIVE LOAD LOG LORA_LOAD_MS
LORA_MODULES MAMBA_GROUPS MAX_INPUT_TOKENS MAX_LORAS MAX_MODEL_LEN MAX_NUM_BATCHED_TOKENS
MAX_NUM_SEQS MODE MODEL_PROFILE MONITOR_HOST MOST NAME NO_KILL NUM_GPU_BLOCKS_OVERRIDE ONCE ONLY
OPERATOR OUT OUTPUT_TOKENS OWNER PATH PATIENCE_S PEER_GBPS PLOT POLICY PORT PREFILL_ENGINES
PREFILL_THRESHOLD PRICES PROBE PROGRESS PROMPT_FILE PROMPT_UNIT PROXY QUANTUM_TOKENS RATE READY
REPEAT REPLAY_PORT REQUESTS REQUESTS_PER_MINUTE REQUEST_ID RESET_ENGINE RESIDENCY RETRIES RE_TOUCH
ROUTER ROUTERS ROUTER_URL SAVE SCALE SEED SEEDS SERVE SESSIONS SESSION_HEADERS SETTLE_S SHELL SINCE
SITE_LOAD SITE_RTT_MS SKIP SLIDING_WINDOW SLOW SLOWDOWN SLO_ITL_MS SMOOTH SPEEDUP SPLIT_SHARE STALL
STARTUP_TIME STORE_DIR SYNC_DELAY_MS TARGET TELL_FINAL TELL_OUTPUT_LENGTHS TELL_TARGETS TENANT
TIMEOUT_S TIME_SCALE TLS_CA TLS_NAME TOKENS_PER_DAY TOKENS_PER_MINUTE TRACE TRACE_BLOCK_SIZE
TRAIN_SHARE TRANSFER_MS TRANSFER_MS_PER_TOKEN TUNE URL WAIT_S WINDOW_GROUPS WORKERS WORKER_TOKENS
"""

OF_TOOLS: Final = frozenset(_TOOLS.split())
"""What commands other than the roles take beside that. A test holds it equal to their flags."""

_OF_SERVICES: Final = ("_SERVICE_HOST", "_TCP_ADDR", "_TCP_PORT", "_TCP_PROTO", "_TCP", "_UDP")
_URLS: Final = ("tcp://", "udp://", "sctp://")

_ALIKE: Final = 0.8
"""From here on (difflib's ratio) a name is taken for a misspelt one."""


def check_variables(variables: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that is no setting of any command, sorted.

    Raises `ConfigError` for one that is spelt almost like a setting: it was meant to be that one.
    Variables that Kubernetes makes of services whose name begins with kvmesh are left out.
    """
    given = sorted(name for name in variables if name.startswith(PREFIX))
    if not given:
        return []
    known = known_names()
    warnings: list[str] = []
    for name in given:
        word = name.removeprefix(PREFIX)
        if word in known or _of_service(word, variables[name]):
            continue
        meant = find_alike(word, known)
        if meant:
            raise ConfigError(f"{shown(name)}: no such setting; is {PREFIX}{meant} meant?")
        warnings.append(f"{shown(name)}: no command has such a setting; it is ignored")
    return warnings


def known_names() -> frozenset[str]:
    """Return every setting as it stands behind `KVMESH_`."""
    names = {name.upper().replace("-", "_") for role in ROLES for name in names_of(role)}
    old = {name.upper().replace("-", "_") for name in (*FIXED, *REMOVED)}
    return frozenset(names | old | NO_SETTINGS | OF_TOOLS | {f"NO_{name}" for name in OF_TOOLS})


def constants() -> frozenset[str]:
    """Return the names of fields that are no settings, of any role."""
    names = {name for role in ROLES for name in _constants_of(role)}
    return frozenset(names.difference(*(names_of(role) for role in ROLES)))


def _constants_of(settings: type) -> Iterator[str]:
    for field in fields(settings):
        default = _default_of(field)
        if is_fixed(field):
            yield field.name
        elif is_dataclass(default):
            yield from _constants_of(type(default))


def names_of(settings: type) -> Iterator[str]:
    """Yield the names of the settings in a dataclass and in those it holds, with their aliases."""
    for field in fields(settings):
        if is_fixed(field):
            continue
        default = _default_of(field)
        if is_dataclass(default):
            yield from names_of(type(default))
            continue
        yield field.name
        yield f"no-{field.name}"
        if get_origin(field.type) is Annotated:
            for note in get_args(field.type)[1:]:
                if isinstance(note, Parameter):
                    yield from _aliases(note)


def _aliases(note: Parameter) -> Iterator[str]:
    for names in (note.alias, note.negative):
        listed: Iterable[str] = (names,) if isinstance(names, str) else names or ()
        yield from (name.lstrip("-") for name in listed)


def _default_of(field: "Field[Any]") -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _of_service(word: str, value: str) -> bool:
    """Return whether Kubernetes made the variable of a service beside this pod."""
    return word.endswith(_OF_SERVICES) or "_SERVICE_PORT" in word or value.startswith(_URLS)


def find_alike(word: str, known: Iterable[str]) -> str:
    """Return the name that is spelt most like `word`; "" when none is."""
    from difflib import get_close_matches  # noqa: PLC0415  where something is wrong

    return next(iter(get_close_matches(word, sorted(known), n=1, cutoff=_ALIKE)), "")
