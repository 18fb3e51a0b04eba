"""Flags in the spellings that other KV routers publish, and settings that were removed: a command
line written with them is taken as it stands, or is rejected with what to write here.
"""

from collections.abc import Iterator, Mapping, Sequence
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

REMOVED: Final[Mapping[str, tuple[str, str]]] = {
    "http-processes": (
        "1",
        (
            "a router is one process; leave this out, and use more cores by more replicas of the"
            " bucket: `kvmesh up --replicas N`, or `kvmesh router` N times with an --http-port each"
            ' behind any balancer, as docs/operate/tuning.md says under "More than one core"'
        ),
    ),
}
"""Settings of `kvmesh router` that are no more: the one value that still says what is, and what to
do instead of any other.
"""

MOST_SHOWN: Final = 64
"""Characters of a value that a message repeats."""

_OFF: Final = frozenset({"false", "no"})


def read_spellings(tokens: Sequence[str]) -> list[str]:
    """Return a command line as the commands read it: a switch and its word joined
    (`--kv-events false` is `--kv-events=false`), switches of `FIXED` and settings of `REMOVED` left
    out.

    What stands behind `--` is left alone. Raises `ConfigError` when one of `FIXED` is turned, and
    when one of `REMOVED` is to change anything.
    """
    end = tokens.index("--") if "--" in tokens else len(tokens)
    joined = [token for token in _join(tokens[:end]) if not _is_idle(token)]
    return [*joined, *tokens[end:]]


def is_removed(name: str, value: str, place: str) -> bool:
    """Return whether the setting `name` is one of `REMOVED`, at the value that changes nothing.

    Raises `ConfigError`, which begins with `place` and the value, when it has another.
    """
    if name not in REMOVED:
        return False
    stands, remedy = REMOVED[name]
    if value != stands:
        raise ConfigError(f"{place} {value[:MOST_SHOWN]!r}: {remedy}")
    return True


def join_loose(tokens: Sequence[str], loose: Sequence[str]) -> list[str]:
    """Return `tokens` with each word of `loose` joined to the flag before it: what rejects
    `--kv-events maybe` then names the flag.
    """
    return list(_join(tokens, frozenset(word.lower() for word in loose)))


def _join(tokens: Sequence[str], words: frozenset[str] = SWITCH_WORDS) -> Iterator[str]:
    flag = ""
    for token in tokens:
        if flag and (token.lower() in words or flag.removeprefix("--") in REMOVED):
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
    if token.startswith("--") and is_removed(name, word, f"--{name}"):
        return True
    on = word.lower() not in _OFF
    if name.startswith("no-"):
        name, on = name.removeprefix("no-"), not on
    if not token.startswith("--") or name not in FIXED:
        return False
    place, remedy = FIXED[name]
    if on != place:
        raise ConfigError(f"{token}: {remedy}")
    return True
