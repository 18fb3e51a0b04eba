"""The `--worker` option of a router alone: an engine, and what cannot be asked of it."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.facts import Role
from kvmesh.errors import ConfigError
from kvmesh.settings.member_name import NAME, name_of

FORM = (
    "[name=]http://host:port[@model][,zmq=tcp://host:port][,replay=tcp://host:port][,topic=T]"
    "[,label=WORD][,taint=WORD][,role=prefill|decode][,bootstrap=PORT]"
)
_WORD = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_KEYS = ("zmq", "replay", "topic", "bind", "label", "taint", "role", "bootstrap")
_ROLES: dict[str, Role] = {"both": "both", "prefill": "prefill", "decode": "decode"}


class StaticWorker(msgspec.Struct, frozen=True):
    """One engine of the configuration.

    Its event publisher is that of rank 0: rank r adds r to both ports. "" is asked of the engine;
    `zmq` "off" follows none. `bind` is for engines that connect to their listener. `labels` and
    `taints` are `WorkerInfo`'s. `role` None: as the engine says; `bootstrap_port`
    is where its decode workers meet it.
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


def parse_words(texts: Sequence[str], place: str) -> tuple[str, ...]:
    """Return labels or taints, each once, sorted. Raises `ConfigError` naming the value."""
    for text in texts:
        if not _WORD.fullmatch(text):
            raise ConfigError(f"{place} {text!r}: use letters, digits and -_.:/, up to 64")
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
    return StaticWorker(
        worker=WorkerId(name),
        url=url.rstrip("/"),
        models=(model,) if model else (),
        zmq=endpoint,
        replay=options.get("replay", ""),
        topic=options.get("topic", ""),
        bind=options.get("bind", "") in {"true", "yes", "1"},
        labels=parse_words([value for key, value in given if key == "label"], f"--worker {text!r}"),
        taints=parse_words([value for key, value in given if key == "taint"], f"--worker {text!r}"),
        role=_ROLES[options["role"]] if "role" in options else None,
        bootstrap_port=int(options.get("bootstrap", "0")),
    )


def _option(text: str, wish: str) -> tuple[str, str]:
    key, _, value = wish.partition("=")
    if key not in _KEYS:
        raise ConfigError(f"--worker {text!r}: {key!r} is none of {', '.join(_KEYS)}")
    if key == "role" and value not in _ROLES:
        raise ConfigError(f"--worker {text!r}: role={value} is none of {', '.join(_ROLES)}")
    if key == "bootstrap" and not value.isdigit():
        raise ConfigError(f"--worker {text!r}: bootstrap={value} is no port")
    if key == "bind":
        return key, value or "true"
    if key in {"zmq", "replay"} and "://" not in value and (key, value) != ("zmq", "off"):
        raise ConfigError(f"--worker {text!r}: {key}={value} is no endpoint like tcp://host:5557")
    return key, value
