"""Sets of u64s as an attacker chooses them: to meet in tables that place numbers by what they are.

Block hashes can be chosen freely by whoever writes events or bookings, and by clients where the
root seed is known and token ids are not bounded: XXH3-64 of 16 ids can be inverted, a block at a
time.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Final, TypeVar

T = TypeVar("T")

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
_INVERSE: Final = pow(GOLDEN, -1, 1 << 64)


def number_of_product(product: int) -> int:
    """Return the number x for which (x ^ x >> 32) * GOLDEN, a usual hash of u64s, is `product`."""
    folded = product * _INVERSE & MASK
    return folded ^ folded >> 32


def _products(draw: Random) -> Iterator[int]:
    upper = draw.getrandbits(32) << 32
    for low in range(1 << 32):
        yield number_of_product(upper | low)


def equal_products(count: int, draw: Random) -> list[int]:
    """Return numbers whose products have equal upper halves: one place in a table of any size."""
    return list(islice(_products(draw), count))


def equal_products_and_bytes(count: int, draw: Random) -> list[int]:
    """Return the same of one lowest byte: of one of the 256 parts of a block table."""
    byte, upper = draw.getrandbits(8), draw.getrandbits(32) << 32
    folded = ((upper | low) * _INVERSE & MASK for low in range(1 << 32))
    return list(
        islice((one ^ one >> 32 for one in folded if (one ^ one >> 32) & 255 == byte), count)
    )


def equal_golden_products(count: int, draw: Random) -> list[int]:
    """Return numbers whose products with GOLDEN alone have equal upper halves."""
    upper = draw.getrandbits(32) << 32
    return [(upper | low) * _INVERSE & MASK for low in range(count)]


def a_progression(count: int, draw: Random) -> list[int]:
    """Return numbers of a fixed distance."""
    start, step = draw.getrandbits(64), draw.getrandbits(draw.randint(1, 64)) | 1
    return [start + step * at & MASK for at in range(count)]


def multiples_of_a_power(count: int, draw: Random) -> list[int]:
    """Return numbers that differ in some upper bits alone."""
    shift, rest = draw.randint(1, 64 - count.bit_length()), draw.getrandbits(64)
    return [(at << shift) ^ (rest & ((1 << shift) - 1)) for at in range(count)]


def equal_upper_bits(count: int, draw: Random) -> list[int]:
    """Return numbers that differ in some lower bits alone."""
    bits = draw.randint(count.bit_length(), 63)
    upper = draw.getrandbits(64) >> bits << bits
    return [upper | low for low in draw.sample(range(1 << min(bits, 62)), count)]


def few_bits(count: int, draw: Random) -> list[int]:
    """Return numbers that differ from one in at most three bits."""
    start = draw.getrandbits(64)
    found = {
        start ^ 1 << a ^ 1 << b ^ 1 << c for a in range(64) for b in range(a) for c in range(b)
    }
    return draw.sample(sorted(found), count)


FAMILIES: Final[tuple[Callable[[int, Random], list[int]], ...]] = (
    equal_products,
    equal_products_and_bytes,
    equal_golden_products,
    a_progression,
    multiples_of_a_power,
    equal_upper_bits,
    few_bits,
)
"""Up to 2^15 distinct numbers each."""


_SHIFT: Final = 5
"""Bits of a hash that a dict of CPython takes in at each step (`PERTURB_SHIFT`)."""

_FREE: Final = 2
"""Digits of 5 bits, above those of a place, that are tried: some 100 ints for each place."""


def of_one_way(bits: int) -> list[int]:
    """Return ints of which half make a way in a dict of 2^`bits` places, and half go along it.

    They are 2/3 of the places, in the order to enter them. An int below 2^61 - 1 is its own hash.
    The next place is 5 times the last one, 1, and what is left of the hash, which loses 5 bits a
    step. When nothing is left, all go the same way: its places are taken first. The others are such
    that each of their first steps meets a taken place, too.
    """
    last, taken = (1 << bits) - 1, (1 << bits) * 11 // 32
    way = [0]
    while len(way) < taken:
        way.append((5 * way[-1] + 1) & last)
    at = {place: number for number, place in enumerate(way)}
    found: list[int] = []
    for number in _steps(way[: taken // 2], at, bits):
        left, place = number, number & last
        while left and place in at:
            left >>= _SHIFT
            place = (5 * place + left + 1) & last
        if at.get(place, taken) < taken // 2:
            found.append(number)
        if len(found) == (1 << bits) * 10 // 32:
            return way + found
    raise AssertionError(f"only {len(found)} ints of 2^{bits} places")


def _steps(begins: list[int], taken: dict[int, int], bits: int) -> Iterator[int]:
    """Yield ints whose first steps meet taken places, for each of which there is a digit."""
    last = (1 << bits) - 1
    for begin in begins:
        tries = [(begin, begin)]
        for digit in range(_FREE):
            tries = [
                (longer, there)
                for number, place in tries
                for longer in range(
                    number, number + (32 << bits + _SHIFT * digit), 1 << bits + _SHIFT * digit
                )
                if (there := (5 * place + (longer >> _SHIFT * (digit + 1)) + 1) & last) in taken
            ]
        yield from (number for number, _ in tries if number > last)


def spent_s(way: Callable[[T], None], numbers: T, most_s: float) -> float:
    """Return the processor time of one run, the least of several where it is more than `most_s`."""
    least_s = float("inf")
    for _ in range(4):
        start_s = time.process_time()
        way(numbers)
        least_s = min(least_s, time.process_time() - start_s)
        if least_s <= most_s:
            break
    return least_s
