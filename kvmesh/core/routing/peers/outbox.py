"""The bound of what this replica has yet to tell its siblings of its bookings."""

from typing import Final

MOST_BYTES: Final = 4 << 20
"""Records that wait to be taken. Beyond it all of them are left out: peers find the gap in their
numbers, and ask for the state.
"""
