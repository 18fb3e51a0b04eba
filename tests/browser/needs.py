"""What tests in a browser need, and why they cannot run where it is missing."""

import shutil
from importlib.util import find_spec

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WHY_NOT = (
    "playwright is not installed"
    if find_spec("playwright") is None
    else "no chromium: apt-get install chromium"
    if CHROMIUM is None
    else ""
)
