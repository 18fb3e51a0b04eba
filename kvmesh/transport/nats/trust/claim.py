"""What a message claims by its subject: what it is, and of whom."""

from typing import Final, Literal, get_args

import msgspec

Kind = Literal["worker heartbeat", "router heartbeat", "command", "lease", "manifest"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_BUS: Final[dict[str, Kind]] = {
    "hb": "worker heartbeat",
    "rt": "router heartbeat",
    "ctl": "command",
    "rctl": "command",
}


class Claim(msgspec.Struct, frozen=True):
    """A kind of message about bucket `bucket`; `member` is who a heartbeat says it is of, "" where
    any router of the bucket may speak.
    """

    kind: Kind
    bucket: str
    member: str = ""


class Claims:
    """Reads the subjects of one mesh. `prefixes` are what a subject with a claim begins with."""

    def __init__(self, namespace: str) -> None:
        words = tuple(f"{namespace}.{word}." for word in _BUS)
        self.prefixes = (*words, f"$KV.{namespace}_meta")
        self.raw_prefixes = tuple(prefix.encode() for prefix in words)

    def read(self, subject: str) -> Claim | None:
        """Return what a message on `subject` claims; None where nothing is signed."""
        if not subject.startswith(self.prefixes):
            return None
        words = subject.split(".")
        match words:
            case ["$KV", _, "lease", "snap", bucket]:
                return Claim("lease", bucket)
            case ["$KV", _, "manifest", bucket]:
                return Claim("manifest", bucket)
            case [_, word, bucket, member] if word in _BUS:
                kind = _BUS[word]
                return Claim(kind, bucket, "" if kind == "command" else member)
            case _:
                return None
