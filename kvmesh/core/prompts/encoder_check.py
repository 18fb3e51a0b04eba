"""Texts on which two ways to tokenise must agree before the faster one is trusted."""

from collections.abc import Iterable, Sequence
from typing import Final

from kvmesh.core.prompts.segment_cache import EncodeBatch

SAMPLES: Final[tuple[str, ...]] = (
    "",
    " ",
    "  \n\n\t x",
    "Hello, world! It's 2024-11-21; don't   stop.\r\n\r\n  Next\u00a0line ",
    "The year 1234567890 costs $3.50 (50%) -- e.g. a_b c-d e/f @g #h 0x7fff 1e-9",
    "def f(x):\n\treturn [x**2 for _ in range(10)]  # comment\n\n\n",
    '{"name": "get_weather", "arguments": {"city": "Z\u00fcrich", "n": [1, 2.5, null, true]}}',
    "na\u00efve caf\u00e9 na\u0131ve cafe\u0301 \ufb01ne \u212b \u00c5 A\u030a \uff21\uff22",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u662f2024\u5e74\u3002",
    "\u3053\u3093\u306b\u3061\u306f \uc548\ub155\ud558\uc138\uc694",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f44d\U0001f3fd\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u2028a\u2029b\u200bc\ufeffd\x00e\x1ff\x7fg\x85h",
    "I'LL we'Re THEY'VE 'tis ''quoted'' \u2019s caf\u00e9's",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "================================================================\n----\n",
    "https://example.com/a/b?c=d&e=%20#f user@example.org C:\\path\\file.txt",
    "x\ny\r\nz\rw\n \n  \n   a\u3000b",
)


def check_samples(added_tokens: Iterable[str]) -> list[str]:
    """Return the samples, and each added token among text, doubled, and broken off."""
    broken = (
        f"a {token} b{token}{token}\n{token}c {token[:-1]} {token[1:]}" for token in added_tokens
    )
    return [*SAMPLES, *broken]


def first_disagreement(
    reference: EncodeBatch, candidate: EncodeBatch, texts: Sequence[str]
) -> str | None:
    """Return the first text the two encode differently; None when they agree on all."""
    pairs = zip(texts, reference(texts), candidate(texts), strict=True)
    return next((text for text, wanted, got in pairs if wanted != got), None)
