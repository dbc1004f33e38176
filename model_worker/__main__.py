"""python -m model_worker"""

import os
import sys

# Spinning OpenMP threads starve the services that share the machine; read when torch loads its OpenMP library.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main() -> int:
    from model_worker import settings, start

    return start.run(settings.load())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as error:
        sys.exit(f"model_worker: {error}: pip install 'octavo[worker]'")
