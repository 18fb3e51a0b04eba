"""The values of wishes: each in a header, else in the body's field, else in the model's policy."""

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from kvmesh.bounds import (
    MAX_NAME,
    MAX_NAMES,
    MAX_PRIORITY,
    Names,
    is_name,
    real_number,
    shown,
    whole_number,
)
from kvmesh.core.chat.inference import Extension
from kvmesh.core.routing.decision import RouterMode, Wished
from kvmesh.core.routing.model_policy import NO_POLICY, ModelPolicy
from kvmesh.errors import RequestError

NO_EXTENSION: Final = Extension()
Given = Mapping[str, str]
"""Headers by name, their values stripped."""

_MODES: Final = get_args(RouterMode)
_NAMED_OTHERWISE: Final = {"temperature": "router_temperature"}
"""Fields whose default by model has another name."""

_READ_BY_ITSELF: Final = frozenset(
    {"mode", "cost", "overlap_score_weight", "allowed_workers", "priority", "session"}
)
"""Fields of the body's `kvmesh` and of `Wished` that depend on others, or have words of their
own.
"""


def name_in(given: Given, name: str) -> str:
    """Return the name in a header of ours, "" for none."""
    header = f"x-kvmesh-{name}"
    text = given.get(header, "")
    if text:
        _check_name(header, text)
    return text


def number_in(given: Given, name: str, most: float) -> float | None:
    """Return the number from 0 to `most` in a header; None without it."""
    header = f"x-kvmesh-{name}"
    text = given.get(header)
    if text is None:
        return None
    value = real_number(text, 0.0, most)
    if value is None:
        raise RequestError(
            f"header {header} is {shown(text)}: use a number >= 0, at most {most:g}", param=header
        )
    return value


def first(*values: float | None) -> float | None:
    """Return the first of several that is given."""
    return next((value for value in values if value is not None), None)


def names_in(given: Given, name: str, in_body: tuple[str, ...]) -> frozenset[str]:
    """Return the names in a header, commas between them, else those in the body."""
    header = f"x-kvmesh-{name}"
    text = given.get(header)
    if text is None:
        return frozenset(word for one in in_body if (word := one.strip()))
    found = frozenset(word for one in text.split(",") if (word := one.strip()))
    if len(found) > MAX_NAMES:
        raise RequestError(
            f"header {header} has {len(found):,} names: at most {MAX_NAMES:,} are taken",
            param=header,
        )
    for word in found:
        _check_name(header, word)
    return found


def header_name(header: bytes, value: bytes) -> str:
    """Return the name in a header, "" for none."""
    text = value.decode("latin-1").strip()
    if text:
        _check_name(header.decode("latin-1"), text)
    return text


def _check_name(header: str, text: str) -> None:
    if not is_name(text):
        raise RequestError(
            f"header {header} is {shown(text)}: a name has at most {MAX_NAME} characters, none of "
            "them a control character",
            param=header,
        )


def mode_in(given: Given, extension: Extension, policy: ModelPolicy) -> RouterMode | None:
    """Return the mode wished; None: the router's own. Raises `RequestError` for an unknown one."""
    text = given.get("x-kvmesh-router-mode") or extension.mode
    if text is None:
        return policy.router_mode
    for known in _MODES:
        if known == text:
            return known  # type: ignore[no-any-return]  # get_args forgets the literal's type
    raise RequestError(
        f"header x-kvmesh-router-mode (or kvmesh.mode) is {shown(text)}: use one of "
        f"{', '.join(_MODES)}",
        param="x-kvmesh-router-mode",
    )


def priority_in(given: Given, extension: Extension, urgency: int) -> int:
    """Return how urgent a request is, larger first. The body's own `priority` is the engine's,
    where smaller is served first: `urgency` is what that means.
    """
    text = given.get("x-kvmesh-priority")
    if text is None:
        return extension.priority or urgency
    value = whole_number(text, -MAX_PRIORITY, MAX_PRIORITY)
    if value is None:
        raise RequestError(
            f"header x-kvmesh-priority is {shown(text)}: use a whole number from {-MAX_PRIORITY} "
            f"to {MAX_PRIORITY}",
            param="x-kvmesh-priority",
        )
    return value


def _reader(name: str, kind: object) -> Callable[[Given, Extension, ModelPolicy], object]:
    """Return what reads a wish with this name and type of the body's field."""
    header, default = name.replace("_", "-"), _NAMED_OTHERWISE.get(name, name)
    if kind is Names:

        def read_names(given: Given, extension: Extension, policy: ModelPolicy) -> object:
            found = names_in(given, header, getattr(extension, name))
            return found or getattr(policy, default, found)

        return read_names
    # `Weight | None`, where `Weight` is an `Annotated` number with its bounds.
    (bounded,) = (one for one in get_args(kind) if one is not type(None))
    _, bounds = get_args(bounded)
    most = bounds.le

    def read_number(given: Given, extension: Extension, policy: ModelPolicy) -> object:
        in_body, by_model = getattr(extension, name), getattr(policy, default, None)
        return first(number_in(given, header, most), in_body, by_model)

    return read_number


_READERS: Final = [
    (name, f"x-kvmesh-{name.replace('_', '-')}", _reader(name, kind))
    for name, kind in Extension.__annotations__.items()
    if name in Wished.__struct_fields__ and name not in _READ_BY_ITSELF
]


def ordinary_in(given: Given, extension: Extension, policy: ModelPolicy) -> dict[str, Any]:
    """Return all wishes that are a field of `Extension` and one of `Wished` with the same name and
    need no rule of their own: names, or a number from 0 on, read by the type of the body's field.
    """
    # By headers alone: what no header names is not looked at, most of the time.
    headers_alone = extension is NO_EXTENSION and policy is NO_POLICY
    return {
        name: read(given, extension, policy)
        for name, header, read in _READERS
        if not headers_alone or header in given
    }
