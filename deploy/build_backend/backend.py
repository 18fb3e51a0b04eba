"""The build backend: setuptools, with a C compiler from PyPI on a machine that has none."""

import os
import shlex
import shutil
import sysconfig

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  the rest of the interface (PEP 517, PEP 660)

ZIG = "ziglang>=0.14,<0.17"
"""A clang with all that it links, as a wheel."""

Settings = dict[str, str | list[str] | None] | None


def find_compiler() -> str | None:
    """Return the C compiler that distutils would run, None where it is not installed."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(shlex.split(command)[0])


def needed() -> list[str]:
    """Return what a build needs of PyPI because this machine lacks it."""
    return [] if find_compiler() else [ZIG]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what a wheel is built with (PEP 517)."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *needed()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return what an editable installation is built with (PEP 660)."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *needed()]
