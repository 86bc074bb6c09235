"""`pydflash2.convert`, for the commands that need it."""

import importlib.util
from pathlib import Path

import pydflash2
from pydflash2.errors import Dflash2Error

# In the source tree the converter lies beside the package; installing puts it inside.
if importlib.util.find_spec("pydflash2.convert") is None:
    raise Dflash2Error(
        f"{Path(pydflash2.__file__).parent} has no converter, because it is the source tree's: run "
        "the installed `pydflash2` command, or `python -m pydflash2` in another folder "
        "(`pip install .` installs both)"
    )

from pydflash2 import convert

__all__ = ["convert"]
