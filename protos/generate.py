"""Generate the Python stubs beside their protos.

    python protos/generate.py [OUTPUT_FOLDER]

Messages come with the type stubs of protoc itself, services with those of mypy-protobuf. grpcio-tools is pinned to an
old release on purpose: generated code refuses runtimes older than its generator, so the pin is the floor for users.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent


def generate(output: Path) -> None:
    """Write ``*_pb2.py``, ``*_pb2.pyi``, ``*_pb2_grpc.py`` and ``*_pb2_grpc.pyi`` under ``output``."""
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("octavo/**/*.proto"))
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={output}",
        f"--pyi_out={output}",
    ]
    if protoc.main([*arguments, *protos]) != 0:
        raise SystemExit("protoc failed")
    services = [name for name in protos if "\nservice " in (ROOT / name).read_text()]
    if protoc.main([*arguments[:3], f"--grpc_python_out={output}", f"--mypy_grpc_out={output}", *services]) != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
