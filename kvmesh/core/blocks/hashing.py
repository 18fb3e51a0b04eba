"""Content hashes of token blocks: kvmesh's own key of a cached block.

A sequence hash names a block together with everything before it:
`XXH3-64(the block's tokens as little-endian u32, seed = the parent's hash)`; the seed of a first
block is its namespace's root, 0 by default. Equal prefixes of one namespace have equal hashes on
every worker, whatever the engine hashes with. A trailing partial block has no hash.

NVIDIA Dynamo's hashes are in `dynamo`.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol, Self

from xxhash import xxh3_64_intdigest

from kvmesh._native import chain, pack_chain
from kvmesh.core.blocks.events import HASH_BYTES, ROOT
from kvmesh.core.blocks.hash_chain import AHEAD, chain_tokens, pack_u32s, pack_u64s
from kvmesh.errors import CodecError, RequestError

TOKEN_BYTES: Final = 4
_U32_FORMATS: Final = frozenset("IiLl" if sys.byteorder == "little" else "")
_NATIVE: Final = sys.byteorder == "little" and struct.calcsize("L") == HASH_BYTES
_HASHES_FORMAT: Final = "{}L" if _NATIVE else "<{}Q"
"""How `struct` packs so many hashes: as native longs, where they fit, 7 ns each instead of 28."""
_SHORT_RUN: Final = 128
_UNPACKERS: Final[list[Callable[[bytes | bytearray], tuple[int, ...]]]] = [
    struct.Struct(f"<{count}Q").unpack_from for count in range(_SHORT_RUN + 1)
]


class TokenBuffer(Protocol):
    """Bytes of little-endian u32 tokens, or a buffer of integers (`array`, numpy)."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return a view of the memory."""
        ...


Tokens = Sequence[int] | TokenBuffer


class Hashes(Protocol):
    """A prompt's sequence hashes, computed when asked for."""

    @property
    def blocks(self) -> int:
        """Return the number of full blocks."""
        ...

    def upto(self, count: int) -> "array[int]":
        """Return the first `count` sequence hashes or more (u64), root first; not to be changed."""
        ...


def namespace_root(
    *, tenant: str = "", lora: str = "", cache_salt: str = "", secret: bytes | int = b""
) -> int:
    """Return the seed of a namespace's first blocks: `ROOT` when nothing is set, else never 0.

    Blocks of different namespaces never match. A `secret` (one a deployment; 0 and b"" mean none)
    makes roots unguessable: nobody can then craft tokens whose hashes meet another tenant's.
    The same arguments give the same root in every process. About 2 us.
    """
    if not (secret or tenant or lora or cache_salt):
        return ROOT
    key = _key_bytes(secret)
    fields = (tenant.encode(), lora.encode(), cache_salt.encode())
    # Lengths keep ("ab", "c") apart from ("a", "bc").
    payload = b"".join(len(field).to_bytes(4, "little") + field for field in fields)
    digest = hashlib.blake2b(payload, digest_size=HASH_BYTES, key=key, person=b"kvmesh-root")
    return int.from_bytes(digest.digest(), "little") or 1


def secret_mark(secret: bytes) -> int:
    """Return a u32 by which two processes see whether they share a secret: 0 for none, else not 0.

    It tells nothing of the secret itself as long as that cannot be guessed.
    """
    if not secret:
        return 0
    digest = hashlib.blake2b(b"", digest_size=4, key=_key_bytes(secret), person=b"kvmesh-mark")
    return int.from_bytes(digest.digest(), "little") or 1


def _key_bytes(secret: bytes | int) -> bytes:
    if isinstance(secret, int):
        secret = secret.to_bytes((secret.bit_length() + 7) // 8, "little")
    if len(secret) > hashlib.blake2b.MAX_KEY_SIZE:
        return hashlib.blake2b(secret).digest()
    return secret


def extend_hash(parent: int, digest: int) -> int:
    """Return the seed of a block that `digest` (of an image, an opaque engine key) tells apart.

    Used in place of the parent's hash, it gives blocks with equal tokens but other contents, and
    all their descendants, other hashes. `digest` is a u64.
    """
    return xxh3_64_intdigest(digest.to_bytes(HASH_BYTES, "little"), parent)


def lookahead_digest(ids: bytes | memoryview) -> int:
    """Return what stands for the token ids behind a block in an end's key: a u64, never 0.

    `ids` are packed little-endian u32s; the key is `extend_hash` of the block's hash and this.
    """
    return xxh3_64_intdigest(ids) or 1


def sequence_hashes(
    tokens: Tokens, block_size: int, root: int = ROOT, parent: int | None = None
) -> list[int]:
    """Return the sequence hash of every full block of `tokens`, root first.

    `parent` is the hash of the block before `tokens`, None when they start the sequence.
    Raises `RequestError` for a token that is no u32. O(tokens): about 25 ns a block from a
    buffer, from a list 2 ns a token more.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}, it must be at least 1")
    seed = root if parent is None else parent
    read = tokens if isinstance(tokens, list) else read_tokens(tokens)
    if isinstance(read, (bytes, memoryview)):
        width = block_size * TOKEN_BYTES
        return chain(seed, read, 0, width, len(read) // width)
    return array("Q", chain_tokens(seed, read, 0, block_size, len(read) // block_size)).tolist()


def pack_hashes(hashes: Collection[int]) -> bytes:
    """Return `hashes` as little-endian u64 bytes, 8 a hash: the form of wire and snapshot."""
    if _NATIVE and isinstance(hashes, array):
        return hashes.tobytes()
    return struct.pack(_HASHES_FORMAT.format(len(hashes)), *hashes)


def as_key(number: int) -> bytes:
    """Return a u64 as a key for a dict or set, in its packed form.

    Python hashes bytes by a secret of the process and an int by itself: who chooses ints chooses
    where in a dict they stand, so that each look-up passes all the others.
    """
    return number.to_bytes(HASH_BYTES, "little")


def unpack_hashes(data: bytes) -> tuple[int, ...]:
    """Return the hashes in `data`, the inverse of `pack_hashes`.

    Raises `CodecError` when `data` is not whole u64s.
    """
    if len(data) % HASH_BYTES:
        raise CodecError(f"packed hashes have {len(data)} bytes, not a multiple of {HASH_BYTES}")
    return struct.unpack(f"<{len(data) // HASH_BYTES}Q", data)


def read_tokens(tokens: Tokens) -> Sequence[int] | bytes | memoryview:
    """Return the bytes of packed tokens without a copy, anything else as integers.

    Raises `RequestError` for bytes that are not whole u32s.
    """
    if isinstance(tokens, (list, tuple)):
        return tokens
    if isinstance(tokens, bytes) and len(tokens) % TOKEN_BYTES == 0:
        return tokens
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]  # a sequence raises TypeError
    except TypeError:
        return tokens  # type: ignore[return-value]  # what is no buffer is a sequence
    if view.itemsize == 1:
        if view.nbytes % TOKEN_BYTES:
            raise RequestError(f"packed tokens have {view.nbytes} bytes, not a multiple of 4")
    elif view.itemsize != TOKEN_BYTES or view.format not in _U32_FORMATS:
        return view.tolist()
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def pack_tokens(tokens: Tokens) -> bytes | memoryview:
    """Return `tokens` as little-endian u32 bytes, a view where they already are.

    Raises `RequestError` for a token that is no u32.
    """
    read = read_tokens(tokens)
    return read if isinstance(read, (bytes, memoryview)) else pack_u32s(read, 0)


def unpack_run(data: bytes | bytearray) -> tuple[int, ...]:
    """Return the hashes in `data` without complaint: what is behind the last whole one is ignored.

    The quickest way to decode, for data checked before.
    """
    count = len(data) >> 3
    if count <= _SHORT_RUN:
        return _UNPACKERS[count](data)
    return struct.unpack_from(f"<{count}Q", data)


_READ_PACKED: Final[Callable[[bytes], Sequence[int]]] = (
    partial(array, "Q") if _NATIVE else unpack_hashes
)
"""Whole packed hashes as an array, where memory holds them as the wire does."""


ALL_BLOCKS: Final = 1 << 48
"""More than any prompt has: `upto` then returns the hash of every block."""


class BlockHashes:
    """The sequence hashes of one prompt, hashed only as far as they are asked for.

    `tokens` are also a string, whose code points they are. A list of them is read piece by piece,
    a buffer of u32s or a string never converted; none may change until all is hashed: then they are
    let go, since a request may last and a prompt be long. Hashes are kept packed: as integers
    they take four times the memory, and waiting requests out of the processor's cache. `blocks`
    is the number of full ones.
    `root` is the namespace's (`namespace_root`), or the hash of the block before the first token.
    `ids` is the whole prompt as packed u32s, kept for `behind`: for indexes of workers whose cache
    looks at the tokens behind a block.
    Raises `RequestError` for bytes that are not whole u32s.
    """

    __slots__ = (
        "_hashes", "_packed", "_tokens", "block_size", "blocks", "ids", "root", "tokens_count",
    )  # fmt: skip

    def __init__(
        self,
        tokens: Tokens | str,
        block_size: int,
        root: int = ROOT,
        ids: bytes | memoryview | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}, it must be at least 1")
        self.block_size = block_size
        self.ids = ids
        self.root = root
        self._hashes = array("Q")
        self._tokens: Sequence[int] = ()
        self._packed: bytes | memoryview | str | None = None
        read = tokens if isinstance(tokens, (list, str)) else read_tokens(tokens)
        self.tokens_count = len(read)
        if isinstance(read, str):
            self._packed = read
        elif isinstance(read, (bytes, memoryview)):
            self._packed = read
            self.tokens_count //= TOKEN_BYTES
        else:
            self._tokens = read
        self.blocks = self.tokens_count // block_size

    @classmethod
    def of(
        cls,
        hashes: Sequence[int],
        block_size: int,
        ids: bytes | memoryview | None = None,
        root: int = ROOT,
    ) -> Self:
        """Return ready-made `hashes`, root first; its `tokens_count` covers the full blocks.

        Raises `RequestError` for one that is no u64.
        """
        made = cls((), block_size, root, ids)
        made.blocks = len(hashes)
        made.tokens_count = made.blocks * block_size
        try:
            made._hashes = hashes if isinstance(hashes, array) else array("Q", pack_u64s(hashes))
        except (OverflowError, TypeError) as error:
            raise RequestError(f"hashes are integers from 0 to 2^64-1: {error}") from error
        return made

    @classmethod
    def unpack(cls, packed: bytes, block_size: int) -> Self:
        """Return the hashes that `pack_hashes` packed. Raises `CodecError`."""
        if len(packed) % HASH_BYTES:
            raise CodecError(f"packed hashes have {len(packed)} bytes, not a multiple of 8")
        return cls.of(_READ_PACKED(packed), block_size)

    def __len__(self) -> int:
        """Return the number of full blocks."""
        return self.blocks

    def behind(self, depth: int, count: int) -> bytes | None:
        """Return the `count` token ids behind the first `depth` blocks, packed u32s.

        b"" where the prompt ends before; None where its ids are not kept.
        """
        if self.ids is None:
            return None
        first = depth * self.block_size * TOKEN_BYTES
        ids = bytes(self.ids[first : first + count * TOKEN_BYTES])
        return ids if len(ids) == count * TOKEN_BYTES else b""

    def by(self, size: int) -> Self | None:
        """Return the hashes of the same prompt by blocks of `size` tokens, without its last token,
        which engines always compute; None where its ids are not kept.
        """
        if self.ids is None:
            return None
        return type(self)(memoryview(self.ids)[:-TOKEN_BYTES], size, self.root, self.ids)

    def upto(self, count: int) -> "array[int]":
        """Return the first `count` hashes or more, all of them when there are fewer.

        The array is this object's own: do not change it. Raises `RequestError` for a token that is
        no u32.
        """
        hashes, blocks, done = self._hashes, self.blocks, len(self._hashes)
        if done >= count or done == blocks:
            return hashes
        fresh, size = min(max(count, done + AHEAD), blocks) - done, self.block_size
        seed = hashes[-1] if done else self.root
        if self._packed is not None:
            hashes.frombytes(pack_chain(seed, self._packed, done * size, size, fresh))
        else:
            hashes.frombytes(chain_tokens(seed, self._tokens, done * size, size, fresh))
        if done + fresh == blocks:
            self._packed, self._tokens = None, ()
        return hashes


def ids_behind(hashes: Hashes, depth: int, count: int) -> bytes | None:
    """Return the `count` token ids behind the first `depth` blocks, packed u32s; b"" where the
    prompt ends before, None where they are not known.
    """
    return hashes.behind(depth, count) if isinstance(hashes, BlockHashes) else None


NO_HASHES: Final[Hashes] = BlockHashes.of((), 1)
"""In place of those that nobody will ask for again."""

BYTES_A_TOKEN: Final = 4
"""What a token is taken for: near the mean of English text and code."""

_OF_BYTES: Final = int.from_bytes(b"by bytes", "little")


def byte_blocks(prompt: bytes, block_size: int, root: int) -> BlockHashes:
    """Return hashes of the prompt's bytes, four counted as a token, in a namespace of their own.

    They never meet hashes of token ids, so that events and routed prompts stay apart.
    """
    whole = len(prompt) // TOKEN_BYTES * TOKEN_BYTES
    return BlockHashes(prompt[:whole], block_size, extend_hash(root, _OF_BYTES))
