"""What ends a release."""


class ReleaseError(Exception):
    """It cannot be made; the message says what is missing and what to do."""
