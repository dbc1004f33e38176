"""``python -m gateway``."""

import sys

from gateway.app import run
from gateway.settings import load

if __name__ == "__main__":
    sys.exit(run(load()))
