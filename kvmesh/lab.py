"""The second distribution, kvmesh-lab: simulated engines, load, simulator, and their commands.

Nothing of kvmesh imports it: the command line finds its commands by name.
"""

from importlib.util import find_spec
from typing import Final

from kvmesh.errors import ConfigError

PACKAGE: Final = "kvmesh_lab"
DISTRIBUTION: Final = "kvmesh-lab"


def is_lab_installed() -> bool:
    """Return whether kvmesh-lab can be imported; nothing of it is loaded."""
    return find_spec(PACKAGE) is not None


def require_lab(wanted: str) -> None:
    """Raise `ConfigError` that says what to install where `wanted` lacks kvmesh-lab."""
    if not is_lab_installed():
        raise ConfigError(
            f"{wanted} needs {DISTRIBUTION}, which is not installed: pip install {DISTRIBUTION}"
        )
