"""The `--worker` option of a router alone: an engine, and what cannot be asked of it."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from kvmesh.bounds import shown, whole_number
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.facts import Role, base_of
from kvmesh.core.engines.registry import connectors
from kvmesh.core.insight.scaling import LEAST_PRICE, MOST_PRICE, PRICE, read_price
from kvmesh.errors import ConfigError
from kvmesh.settings.member_name import NAME, name_of

FORM = (
    "[name=]http://host:port[@model][,zmq=tcp://host:port][,replay=tcp://host:port][,topic=T]"
    "[,label=WORD][,taint=WORD][,role=prefill|decode][,bootstrap=PORT]"
    "[,connector=nixl|nixl-push|mooncake|p2p-nccl|shared|bootstrap][,eagle-drop]"
)
MOST_PORTS = 65535
_WORD = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_KEYS = (
    *("zmq", "replay", "topic", "bind", "label", "taint", "role", "bootstrap", "connector"),
    "eagle-drop",
)
_TRUE = frozenset({"true", "yes", "1"})
_ROLES: dict[str, Role] = {"both": "both", "prefill": "prefill", "decode": "decode"}


class StaticWorker(msgspec.Struct, frozen=True):
    """One engine of the configuration.

    Its event publisher is that of rank 0: rank r adds r to both ports. "" is asked of the engine;
    `zmq` "off" follows none. `bind` is for engines that connect to their listener. `labels` and
    `taints` are `WorkerInfo`'s. `role` None: as the engine says; `bootstrap_port`
    is where its decode workers meet it, `connector` how they share requests ("": the engine's way).
    `eagle_drop`: it computes the last block that it matched again.
    """

    worker: WorkerId
    url: str
    models: tuple[str, ...] = ()
    zmq: str = ""
    replay: str = ""
    topic: str = ""
    bind: bool = False
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    role: Role | None = None
    bootstrap_port: int = 0
    connector: str = ""
    eagle_drop: bool = False


def parse_words(texts: Sequence[str], place: str) -> tuple[str, ...]:
    """Return labels or taints, each once, sorted. Raises `ConfigError` naming the value."""
    for text in texts:
        if not _WORD.fullmatch(text):
            raise ConfigError(f"{place} {shown(text)}: use letters, digits and -_.:/, up to 64")
        if read_price((text,)) is None:
            raise ConfigError(
                f"{place} {shown(text)}: write {PRICE}NUMBER, from {LEAST_PRICE} to {MOST_PRICE:g}"
            )
    return tuple(sorted({*texts}))


def parse_workers(texts: Sequence[str], *, empty: bool = False) -> list[StaticWorker]:
    """Return the workers written as `FORM` says; `zmq=off` follows no events.

    Raises `ConfigError` naming the value and the remedy; for none unless they may be `empty`.
    """
    if not texts and not empty:
        raise ConfigError("a router alone needs at least one --worker http://host:port")
    workers: dict[str, StaticWorker] = {}
    for text in texts:
        worker = _parse(text)
        if worker.worker in workers:
            name = worker.worker
            raise ConfigError(
                f"--worker {text!r}: two workers are called {name}; name= one of them"
            )
        workers[worker.worker] = worker
    return list(workers.values())


def _parse(text: str) -> StaticWorker:
    name, equals, rest = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        name, rest = "", text
    address, *wishes = rest.split(",")
    url, _, model = address.partition("@")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"--worker {text!r}: write {FORM}")
    name = name or name_of(parts.netloc)
    given = [_option(text, wish) for wish in wishes]
    options = dict(given)
    endpoint = options.get("zmq", "")
    if not endpoint and options.keys() & {"replay", "bind"}:
        raise ConfigError(f"--worker {text!r}: replay and bind need zmq=tcp://host:port, too")
    role = _ROLES[options["role"]] if "role" in options else None
    connector, port = options.get("connector", ""), int(options.get("bootstrap", "0"))
    check_port(connector, role or "both", port, f"--worker {text!r}: connector={connector}")
    return StaticWorker(
        worker=WorkerId(name),
        url=base_of(url),
        models=(model,) if model else (),
        zmq=endpoint,
        replay=options.get("replay", ""),
        topic=options.get("topic", ""),
        bind=options.get("bind", "") in _TRUE,
        labels=parse_words([value for key, value in given if key == "label"], f"--worker {text!r}"),
        taints=parse_words([value for key, value in given if key == "taint"], f"--worker {text!r}"),
        role=role,
        bootstrap_port=port,
        connector=connector,
        eagle_drop=options.get("eagle-drop", "") in _TRUE,
    )


def check_port(connector: str, role: str, port: int, place: str) -> None:
    """Raise `ConfigError` where a connector needs a port of a worker of that role that has none."""
    way = connectors().get(connector)
    if way is not None and not port and f"{role}-port" in way.needs:
        raise ConfigError(
            f"{place} needs to know where the {role} worker's side channel listens: "
            "give its bootstrap port (bootstrap=PORT, --bootstrap-port)"
        )


def _option(text: str, wish: str) -> tuple[str, str]:
    key, _, value = wish.partition("=")
    if key not in _KEYS:
        raise ConfigError(f"--worker {text!r}: {key!r} is none of {', '.join(_KEYS)}")
    if key == "role" and value not in _ROLES:
        raise ConfigError(f"--worker {text!r}: role={value} is none of {', '.join(_ROLES)}")
    if key == "bootstrap" and whole_number(value, 1, MOST_PORTS) is None:
        raise ConfigError(f"--worker {text!r}: bootstrap={shown(value)} is no port")
    if key == "connector" and value not in connectors():
        known = ", ".join(connectors())
        raise ConfigError(f"--worker {text!r}: connector={shown(value)} is none of {known}")
    if key in {"bind", "eagle-drop"}:
        return key, value or "true"
    if key in {"zmq", "replay"} and "://" not in value and (key, value) != ("zmq", "off"):
        raise ConfigError(f"--worker {text!r}: {key}={value} is no endpoint like tcp://host:5557")
    return key, value
