"""What a meta-router knows of a request, and the rules that send some kinds to one bucket."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from kvmesh.bounds import MAX_COUNT, shown, whole_number
from kvmesh.core.buckets.beginnings import NO_KEYS, PromptKeys, prompt_family
from kvmesh.errors import ConfigError

_RULE_KEYS: Final = ("bucket", "model", "header", "min-chars", "max-chars", "prefix", "family")
_FAMILY_DIGITS: Final = 16


class BucketRequest(msgspec.Struct, frozen=True):
    """What a meta-router knows of a request. `headers` have lower-case names.

    `bucket` is the one the client named ("" for none), `workers` those it may go to, none named:
    any. `prompt_start` has the deepest of `DEPTHS` where the prompt is that long, `opening` is as
    much of it as ends with the first user message. `sessions` are keys of the request's session
    and of the one that it is part of. `asks`: nothing is sent, so nothing is remembered.
    """

    bucket: str = ""
    model: str = ""
    headers: Mapping[str, str] = {}
    prompt_chars: int = 0
    prompt_start: str = ""
    workers: frozenset[str] = frozenset()
    opening: str | None = None
    keys: PromptKeys = NO_KEYS
    sessions: tuple[int, ...] = ()
    asks: bool = False

    def family(self) -> str:
        """Return the `prompt_family` of how the prompt opens."""
        return prompt_family(self.prompt_start if self.opening is None else self.opening)


class BucketRule(msgspec.Struct, frozen=True):
    """All that is given must match. `model` and `header_value` are globs, lengths characters.

    `prefix` is what the prompt begins with, `family` the `prompt_family` of its opening.
    """

    bucket: str
    model: str | None = None
    header: str | None = None
    header_value: str = "*"
    min_chars: int = 0
    max_chars: int | None = None
    prefix: str = ""
    family: str = ""

    def matches(self, request: BucketRequest) -> bool:
        """Return whether the request is this rule's."""
        if self.model is not None and not fnmatchcase(request.model, self.model):
            return False
        if self.header is not None:
            value = request.headers.get(self.header)
            if value is None or not fnmatchcase(value, self.header_value):
                return False
        if request.prompt_chars < self.min_chars:
            return False
        if self.max_chars is not None and request.prompt_chars > self.max_chars:
            return False
        if self.family and self.family != request.family():
            return False
        return request.prompt_start.startswith(self.prefix)


def parse_rule(text: str, place: str = "--rule") -> BucketRule:
    """Return the rule written `bucket=code,model=*coder*,header=x-team:search,min-chars=4000`.

    Raises `ConfigError` that names the value, `place` and the remedy.
    """
    where = f"{place} {text!r}"
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or key not in _RULE_KEYS:
            raise ConfigError(f"{where}: {part!r} is no key=value of {', '.join(_RULE_KEYS)}")
        if key in fields:
            raise ConfigError(f"{where}: {key} is given twice; write a rule for each")
        fields[key] = value.strip()
    if not fields.get("bucket"):
        raise ConfigError(f"{where}: names no bucket; begin with bucket=NAME")
    if len(fields) == 1:
        raise ConfigError(f"{where}: matches everything; add a condition or drop the other rules")
    header, colon, header_value = fields.get("header", "").partition(":")
    if "header" in fields and not header:
        raise ConfigError(f"{where}: header needs a name; write header=NAME or header=NAME:GLOB")
    min_chars = _parse_count(fields.get("min-chars", "0"), "min-chars", where)
    max_chars = fields.get("max-chars")
    longest = None if max_chars is None else _parse_count(max_chars, "max-chars", where)
    if longest is not None and longest < min_chars:
        raise ConfigError(f"{where}: max-chars {longest} is below min-chars; swap them")
    return BucketRule(
        bucket=fields["bucket"],
        model=fields.get("model"),
        header=header.lower() or None,
        header_value=header_value if colon else "*",
        min_chars=min_chars,
        max_chars=longest,
        prefix=fields.get("prefix", ""),
        family=_parse_family(fields.get("family", ""), where),
    )


def _parse_family(text: str, where: str) -> str:
    digits = text.lower()
    if digits and (len(digits) != _FAMILY_DIGITS or not set(digits) <= set("0123456789abcdef")):
        raise ConfigError(f"{where}: family is {text!r}; give the 16 hex digits of /v1/bucket")
    return digits


def _parse_count(text: str, key: str, where: str) -> int:
    count = whole_number(text, 0, MAX_COUNT)
    if count is None:
        raise ConfigError(f"{where}: {key} is {shown(text)}; give a whole number of characters")
    return count
