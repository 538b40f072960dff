"""`python -m peers NAME`: the process that the runtime of this name is timed in."""

import sys

from .worker import main

main(sys.argv[1])
