"""`python -m jaxswap` is the command line."""

import sys

from jaxswap.cli import main

sys.exit(main())
