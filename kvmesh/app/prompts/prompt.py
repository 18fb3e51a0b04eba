"""A prompt that was read, as routing knows it."""

import msgspec

from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.chat.prompt_form import PromptForm, Unforeseen


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What to look up and how long it is. `approximate`: no hashes of the engine's token ids;
    `estimated`: no hashes at all, and tokens by the size of the body. `unforeseen`: why it is not
    foretold how much of it the engine reuses. `media`: which of its media are followed, in words.
    """

    hashes: Hashes
    tokens: int
    approximate: bool = False
    estimated: bool = False
    unforeseen: Unforeseen = ""
    media: str = ""


def formed(prompt: Prompt, form: PromptForm) -> Prompt:
    """Return a prompt as its form has the engine take it."""
    unforeseen = form.unforeseen or prompt.unforeseen
    if form.computed:
        return Prompt(NO_HASHES, prompt.tokens, unforeseen=unforeseen)
    if unforeseen != prompt.unforeseen:
        return msgspec.structs.replace(prompt, unforeseen=unforeseen)
    return prompt


def among(prompt: Prompt, others: int, prompts: int) -> Prompt:
    """Return a prompt as the first of several, with the tokens of the others."""
    if not others and prompts == 1:
        return prompt
    unforeseen: Unforeseen = "batch" if prompts > 1 else prompt.unforeseen
    return msgspec.structs.replace(prompt, tokens=prompt.tokens + others, unforeseen=unforeseen)
