"""What of its hardening a shared object shows: read from its ELF headers, without other tools."""

import struct
from typing import Final

HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT: Final = struct.Struct("<IIQQQQQQ")
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
ENTRY: Final = struct.Struct("<qQ")
SYMBOL: Final = struct.Struct("<IBBHQQ")
LITTLE_64: Final = b"\x7fELF\x02\x01"
X86_64: Final = 62

LOAD, DYNAMIC, STACK, RELRO = 1, 2, 0x6474E551, 0x6474E552
DYNAMIC_SYMBOLS: Final = 11
EXECUTABLE, WRITABLE = 1, 2
TEXTREL, BIND_NOW, FLAGS, FLAGS_1 = 22, 24, 30, 0x6FFFFFFB
FLAG_TEXTREL, FLAG_NOW, FLAG_1_NOW = 4, 8, 1
ENDBR64: Final = bytes.fromhex("f30f1efa")
"""What an x86 jumps to where branches are tracked: the mark of `-fcf-protection`."""


class Shared:
    """A shared object: `segments`, `dynamic` entries, and the addresses of dynamic `symbols`.

    Raises `ValueError` for anything but a whole 64-bit little-endian ELF file.
    """

    def __init__(self, data: bytes) -> None:
        if not data.startswith(LITTLE_64):
            raise ValueError("it is no ELF file of 64 bits, little-endian")
        try:
            self._read(data)
        except (struct.error, IndexError) as error:
            raise ValueError(f"the ELF file is cut: {error}") from error

    def _read(self, data: bytes) -> None:
        head = HEADER.unpack_from(data)
        self.data, self.machine = data, head[2]
        self.segments = [
            SEGMENT.unpack_from(data, head[5] + head[9] * at) for at in range(head[10])
        ]
        sections = [SECTION.unpack_from(data, head[6] + head[11] * at) for at in range(head[12])]
        self.dynamic = {
            tag: value
            for kind, _, offset, _, _, size, _, _ in self.segments
            if kind == DYNAMIC
            for tag, value in ENTRY.iter_unpack(data[offset : offset + size])
        }
        self.symbols = {
            self._name(sections[section[6]][4] + name): address
            for section in sections
            if section[1] == DYNAMIC_SYMBOLS
            for name, _, _, _, address, _ in SYMBOL.iter_unpack(
                data[section[4] : section[4] + section[5]]
            )
        }

    def _name(self, at: int) -> str:
        return self.data[at : self.data.index(0, at)].decode("ascii", "replace")

    def permits(self, kind: int) -> list[int]:
        """Return the permissions of each segment of a kind."""
        return [one[1] for one in self.segments if one[0] == kind]

    def starts(self, name: str) -> bytes:
        """Return the first 4 bytes of a function."""
        address = self.symbols[name]
        for kind, _, offset, start, _, length, _, _ in self.segments:
            if kind == LOAD and start <= address < start + length:
                return self.data[offset + address - start :][:4]
        raise ValueError(f"{name} is in no segment")


def find_missing(data: bytes, entry: str, *, glibc: bool) -> list[str]:
    """Return what of the hardening in pyproject.toml a shared object with the function `entry`
    lacks; [] is all.

    `-fstack-clash-protection` leaves no mark; musl has no checked functions to call. Raises
    `ValueError` as `Shared`, and for a file without `entry`.
    """
    shared = Shared(data)
    if entry not in shared.symbols:
        raise ValueError(f"it has no {entry}")
    flags, more = shared.dynamic.get(FLAGS, 0), shared.dynamic.get(FLAGS_1, 0)
    now = flags & FLAG_NOW or more & FLAG_1_NOW or BIND_NOW in shared.dynamic
    stacks, loads = shared.permits(STACK), shared.permits(LOAD)
    checked = any(one.startswith("__") and one.endswith("_chk") for one in shared.symbols)
    held = {
        "relro": bool(shared.permits(RELRO)),
        "now": bool(now),
        "noexecstack": bool(stacks) and not any(one & EXECUTABLE for one in stacks),
        "write or run": not any(one & WRITABLE and one & EXECUTABLE for one in loads),
        "text relocations": not (TEXTREL in shared.dynamic or flags & FLAG_TEXTREL),
        "-fstack-protector-strong": "__stack_chk_fail" in shared.symbols,
        "-D_FORTIFY_SOURCE": checked or not glibc,
        "-fcf-protection": shared.machine != X86_64 or shared.starts(entry) == ENDBR64,
    }
    return [name for name, there in held.items() if not there]
