from __future__ import annotations

import sys

from apl.cli import main

sys.exit(main())
