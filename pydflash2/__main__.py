"""`python -m pydflash2`: the same as the `pydflash2` command."""

import sys

from pydflash2.cli import main

sys.exit(main())
