"""What a router keeps of a stream that passes, so that another engine can go on with it."""

from typing import Literal

import msgspec

Loss = Literal["", "too long", "malformed", "no ids"]
"""Why ids were not kept to the end; "" where they were."""


class Text(msgspec.Struct, frozen=True, gc=False):
    """Text that has passed, as JSON escapes it: its size in bytes, and its `text_hash`."""

    size: int = 0
    digest: int = 0


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What a stream with `keep` has said so far in choice 0.

    `prompt_ids` and `token_ids` are packed, 4 bytes an id, least significant byte first; empty
    where they are `lost`: "too long", more bytes than were allowed; "malformed", an event was no
    JSON, had no list of whole numbers below 2^32 in their place, or a second prompt; "no ids", an
    event of output came without. Of its text, by kind: bytes as JSON escapes them, and their
    `text_hash`. `arguments` are those of all tool calls in the order in which they came.
    `tool_calls` have begun: each came with its id. `choices` is the largest index plus 1.
    `finished`: a finish reason came. `marks` are those of its events (`stream_marks`), where they
    were asked for.
    """

    prompt_ids: bytes = b""
    token_ids: bytes = b""
    content_bytes: int = 0
    content_hash: int = 0
    reasoning_bytes: int = 0
    reasoning_hash: int = 0
    arguments_bytes: int = 0
    arguments_hash: int = 0
    tool_calls: int = 0
    choices: int = 0
    finished: bool = False
    lost: Loss = ""
    marks: bytes = b""

    @property
    def content(self) -> Text:
        """Return the text of the answer."""
        return Text(self.content_bytes, self.content_hash)

    @property
    def reasoning(self) -> Text:
        """Return the text of its reasoning."""
        return Text(self.reasoning_bytes, self.reasoning_hash)

    @property
    def arguments(self) -> Text:
        """Return the arguments of its tool calls."""
        return Text(self.arguments_bytes, self.arguments_hash)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing of the answer has passed."""
        texts = self.content_bytes or self.reasoning_bytes or self.arguments_bytes
        return not (texts or self.token_ids or self.tool_calls or self.finished)

    def followed_by(self, more: "Kept") -> "Kept":
        """Return what has passed in all: `more` came from an engine that went on by token ids. Of
        its text only the size is known.
        """
        return msgspec.structs.replace(
            more,
            prompt_ids=self.prompt_ids,
            token_ids=self.token_ids + more.token_ids,
            content_bytes=self.content_bytes + more.content_bytes,
            reasoning_bytes=self.reasoning_bytes,
            reasoning_hash=self.reasoning_hash,
            choices=max(self.choices, more.choices),
            lost=self.lost or more.lost,
            marks=self.marks + more.marks,
        )
