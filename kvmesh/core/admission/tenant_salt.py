"""What keeps tenants' cached blocks apart: the salt that a router gives each request's blocks.

Engines begin the hash of a prompt's first block with `cache_salt`, so prompts of two salts share no
block, whatever they say. Only who has the secret can make a salt: a client's own is folded in.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Literal

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError

Sort = Literal["tenant", "group", "public"]

PUBLIC_FIELDS: Final = frozenset(
    {
        *("model", "messages", "prompt", "stream", "stream_options", "n", "seed", "stop", "user"),
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "kvmesh"),
        *("frequency_penalty", "presence_penalty", "logprobs", "top_logprobs", "priority"),
    }
)
"""Fields of a body that put nothing of their own into the prompt: with any other it is private."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that is text and nothing else; one with more compares unequal to all of these."""

    role: str
    content: str


_texts: Final = msgspec.json.Decoder(str)
_chats: Final = msgspec.json.Decoder(tuple[Message, ...])


class PublicPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A completion's `prompt`, or a chat's `messages`, that may be known to have been asked."""

    prompt: str = ""
    messages: tuple[Message, ...] = ()


class Sharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tenants share. `groups` are tenants that trust each other; `public` are prompts that
    all share, and each of their beginnings, when nothing private follows.
    """

    groups: dict[str, tuple[str, ...]] = {}
    public: tuple[PublicPrompt, ...] = ()


def parse_sharing(text: str, source: str) -> Sharing:
    """Return what a TOML file says that tenants share. Raises `ConfigError` naming `source`."""
    import tomllib  # noqa: PLC0415  takes 6 ms, and few routers have such a file

    try:
        sharing = msgspec.convert(tomllib.loads(text), Sharing)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f'{source}: {error}; write [groups] with NAME = ["tenant", …], and [[public]] with '
            "prompt or messages"
        ) from error
    seen: dict[str, str] = {}
    for group, tenants in sharing.groups.items():
        for tenant in tenants:
            if seen.setdefault(tenant, group) != group:
                raise ConfigError(
                    f"{source}: tenant {tenant!r:.80} is in groups {seen[tenant]!r:.80} and "
                    f"{group!r:.80}; a tenant has one"
                )
    for number, one in enumerate(sharing.public, 1):
        if bool(one.prompt) == bool(one.messages):
            raise ConfigError(
                f"{source}: public entry {number}: give prompt, or messages, not both"
            )
    return sharing


class TenantSalts:
    """Makes the salts of one deployment, by a secret that all its routers have."""

    def __init__(self, secret: bytes, sharing: Sharing | None = None) -> None:
        sharing = sharing or Sharing()
        self._secret = secret
        self._groups = {one: group for group, all_ in sharing.groups.items() for one in all_}
        self._prompts = tuple(one.prompt for one in sharing.public if one.prompt)
        self._chats = tuple(one.messages for one in sharing.public if one.messages)
        self.mark = self._salt("tenant", "", b"mark")[:16]

    def salt(self, tenant: str, own: bytes = b"") -> str:
        """Return the salt of a tenant's request, 64 hex digits; `own` is what its client chose."""
        group = self._groups.get(tenant)
        if group is not None:
            return self._salt("group", group, own)
        return self._salt("tenant", tenant, own)

    def public_salt(self) -> str:
        """Return the salt of prompts that are public from the first token to the last."""
        return self._salt("public", "", b"")

    def is_public(self, fields: Mapping[str, msgspec.Raw]) -> bool:
        """Return whether all of a body's prompt is public: an entry, or the beginning of one."""
        if not PUBLIC_FIELDS.issuperset(fields):
            return False
        if "prompt" in fields and "messages" not in fields:
            return self._is_public_prompt(fields["prompt"])
        if "messages" in fields and "prompt" not in fields:
            return self._is_public_chat(fields["messages"])
        return False

    def _is_public_prompt(self, raw: msgspec.Raw) -> bool:
        try:
            prompt: str = _texts.decode(raw)
        except UNREADABLE:
            return False
        return bool(prompt) and any(one.startswith(prompt) for one in self._prompts)

    def _is_public_chat(self, raw: msgspec.Raw) -> bool:
        try:
            chat: tuple[Message, ...] = _chats.decode(raw)
        except UNREADABLE:
            return False
        return bool(chat) and any(one[: len(chat)] == chat for one in self._chats)

    def _salt(self, sort: Sort, name: str, own: bytes) -> str:
        # Lengths before contents: no two of (sort, name, own) make the same text.
        named = name.encode("utf-8", "surrogatepass")
        text = b"%b\0%d\0%b%b" % (sort.encode(), len(named), named, own)
        return hmac.new(self._secret, text, sha256).hexdigest()
