"""``python -m gateway``."""

import sys

if __name__ == "__main__":
    try:
        from gateway.app import run
        from gateway.settings import load
    except ModuleNotFoundError as error:
        sys.exit(f"gateway: {error}: pip install 'octavo[gateway]'")
    sys.exit(run(load()))
