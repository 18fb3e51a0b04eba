"""Flags in the spellings that other KV routers publish, and settings that were removed: a command
line written with them is taken as it stands, or is rejected with what to write here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kvmesh.errors import ConfigError

SWITCH_WORDS: Final = frozenset({"true", "false", "yes", "no"})
"""What may stand behind a switch: `--kv-events false`."""

FIXED: Final[Mapping[str, tuple[bool, str]]] = {
    "router-replica-sync": (
        True,
        (
            "replicas of a bucket always share what they route; to route for itself alone"
            " a router takes a --bucket of its own"
        ),
    ),
    "track-active-blocks": (
        True,
        (
            "active blocks are always tracked; to route without them, give them no weight in the"
            " cost: --kv-cost predicted-time:decode_weight=0"
        ),
    ),
    "router-reset-states": (
        False,
        (
            "a router that forgets makes its siblings forget; delete the bucket's stream instead,"
            ' as docs/operate/runbook.md says under "Forget everything"'
        ),
    ),
}
"""Published switches that cannot be turned here: where each always stands, and what to do instead
of turning it.
"""

REMOVED: Final[Mapping[str, str]] = {
    "http-processes": "use more cores by --processes",
    "log-format": "leave it out: logs are text on a terminal, JSON elsewhere",
    "admin-host": "--admin-port takes HOST:PORT",
    "upstream-cert-key": "put the key into the file of --upstream-cert, behind the chain",
    "nats-nkey-seed": "--nats-creds takes the file of an nkey seed, too",
    "kv-weight": "write the weight behind the formula: --kv-cost predicted-time:NAME=NUMBER",
    "queue-fairness": "write --queue-policy locality",
    "tenant-isolation": "--tenant-secret-file alone keeps tenants apart",
    "slo-ttft-ms": "write --slo ttft-ms=NUMBER",
    "slo-tpot-ms": "write --slo tpot-ms=NUMBER",
    "tenant-slo": "write --slo tenant=GLOB,ttft-ms=NUMBER",
    "otlp-endpoint": "set the variable OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp-sample": "set the variables OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG",
}
"""Settings that are no more, and what to write instead."""

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "mocker": {"host": "http-host", "port": "http-port", "replay-port": "kv-replay-port"},
    "analyze": {"workers": "engines", "blocks-per-worker": "num-gpu-blocks"},
    "simulate": {"blocks": "num-gpu-blocks"},
}
"""Settings of a command that have another name now. The old one is taken for one version more."""

UNUSED: Final = "router-snapshot-threshold"
"""A published flag that is taken with its number and left out: when a snapshot is due is known."""

SERVING: Final = frozenset({"router", "picker", "meta-router", "worker"})
"""The commands that had them."""

_OFF: Final = frozenset({"false", "no"})


def read_spellings(tokens: Sequence[str]) -> list[str]:
    """Return a command line as the commands read it: a switch and its word joined
    (`--kv-events false` is `--kv-events=false`), switches of `FIXED` left out.

    What stands behind `--` is left alone. Raises `ConfigError` when one of `FIXED` is turned, and
    for one of `REMOVED`.
    """
    end = tokens.index("--") if "--" in tokens else len(tokens)
    if f"--{UNUSED}" in tokens[:end]:
        at = tokens.index(f"--{UNUSED}")
        return read_spellings([*tokens[:at], *tokens[at + 2 :]])
    if SERVING.intersection(tokens[:1]):
        for token in tokens[:end]:
            name = token.partition("=")[0]
            if name.startswith("--"):
                check_removed(name.removeprefix("--").removeprefix("no-"), name)
    joined = [token for token in _join(tokens[:end]) if not _is_idle(token)]
    return [*joined, *tokens[end:]]


def check_removed(name: str, place: str) -> None:
    """Raise `ConfigError`, which begins with `place`, for a setting `name` of `REMOVED`."""
    if name in REMOVED:
        raise ConfigError(f"{place}: there is no such setting any more; {REMOVED[name]}")


def renamed(
    command: str, tokens: Iterable[str], keys: Iterable[str], variables: Iterable[str]
) -> Iterator[str]:
    """Yield a warning for each flag, key of a file and variable of a setting of `RENAMED`."""
    given = {token.partition("=")[0] for token in tokens if token.startswith("--")}
    given.update((*keys, *variables))
    for old, new in RENAMED.get(command, {}).items():
        word = old.replace("-", "_")
        for name in sorted(given & {f"--{old}", old, word, f"KVMESH_{word.upper()}"}):
            yield f"{name}: deprecated, and gone in the next version: it is --{new} now"


def join_loose(tokens: Sequence[str], loose: Sequence[str]) -> list[str]:
    """Return `tokens` with each word of `loose` joined to the flag before it: what rejects
    `--kv-events maybe` then names the flag.
    """
    return list(_join(tokens, frozenset(word.lower() for word in loose)))


def _join(tokens: Sequence[str], words: frozenset[str] = SWITCH_WORDS) -> Iterator[str]:
    flag = ""
    for token in tokens:
        if flag and token.lower() in words:
            yield f"{flag}={token}"
            flag = ""
            continue
        if flag:
            yield flag
        flag = token if token.startswith("--") and "=" not in token else ""
        if not flag:
            yield token
    if flag:
        yield flag


def _is_idle(token: str) -> bool:
    name, _, word = token.removeprefix("--").partition("=")
    on = word.lower() not in _OFF
    if name.startswith("no-"):
        name, on = name.removeprefix("no-"), not on
    if name == UNUSED:
        return True
    if not token.startswith("--") or name not in FIXED:
        return False
    place, remedy = FIXED[name]
    if on != place:
        raise ConfigError(f"{token}: {remedy}")
    return True
