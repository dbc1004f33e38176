"""The contracts: stubs match their protos, everything in them is commented, and buf has nothing to say."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"

# Field numbers in descriptor.proto, which source locations are made of.
MESSAGE, ENUM, SERVICE = 4, 5, 6
FIELD, NESTED, NESTED_ENUM, ONEOF = 2, 3, 4, 8
VALUE, METHOD = 2, 2


@pytest.mark.unit
def test_stubs_match_their_protos(tmp_path: Path) -> None:
    # protoc finds its plugins on the path.
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([sys.executable, PROTOS / "generate.py", tmp_path], check=True, env=environ)
    generated = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2*")}
    committed = {path.relative_to(PROTOS): path.read_text() for path in PROTOS.rglob("*_pb2*") if path.suffix != ".pyc"}
    assert len(generated) > 20
    assert sorted(generated) == sorted(committed)
    stale = [str(path) for path in generated if generated[path] != committed[path]]
    assert stale == [], "run make protos"


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> list[descriptor_pb2.FileDescriptorProto]:
    """Our files, with the comments of their sources."""
    output = tmp_path_factory.mktemp("descriptors") / "set.binpb"
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("octavo/**/*.proto"))
    include = str(files("grpc_tools") / "_proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{include}", "--include_source_info"]
    subprocess.run([*command, f"--descriptor_set_out={output}", *names], check=True)
    return list(descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file)


Named = tuple[str, tuple[int, ...]]


def in_message(message: descriptor_pb2.DescriptorProto, path: tuple[int, ...]) -> Iterator[Named]:
    # The entry of a map field is a message that no source line declares.
    if message.options.map_entry:
        return
    yield message.name, path
    yield from ((field.name, (*path, FIELD, index)) for index, field in enumerate(message.field))
    for index, oneof in enumerate(message.oneof_decl):
        # `optional` makes a oneof whose name begins with an underscore; nobody wrote it.
        if not oneof.name.startswith("_"):
            yield oneof.name, (*path, ONEOF, index)
    for index, nested in enumerate(message.nested_type):
        yield from in_message(nested, (*path, NESTED, index))
    for index, enum in enumerate(message.enum_type):
        yield from in_enum(enum, (*path, NESTED_ENUM, index))


def in_enum(enum: descriptor_pb2.EnumDescriptorProto, path: tuple[int, ...]) -> Iterator[Named]:
    yield enum.name, path
    yield from ((value.name, (*path, VALUE, index)) for index, value in enumerate(enum.value))


def in_file(file: descriptor_pb2.FileDescriptorProto) -> Iterator[Named]:
    for index, message in enumerate(file.message_type):
        yield from in_message(message, (MESSAGE, index))
    for index, enum in enumerate(file.enum_type):
        yield from in_enum(enum, (ENUM, index))
    for index, service in enumerate(file.service):
        yield service.name, (SERVICE, index)
        yield from ((method.name, (SERVICE, index, METHOD, at)) for at, method in enumerate(service.method))


@pytest.mark.unit
def test_everything_is_commented_and_comments_start_with_the_name(
    descriptors: list[descriptor_pb2.FileDescriptorProto],
) -> None:
    seen, wrong = 0, []
    for file in descriptors:
        comments = {tuple(place.path): place.leading_comments.split() for place in file.source_code_info.location}
        for name, path in in_file(file):
            seen += 1
            words = comments.get(path, [])
            if not words or words[0].rstrip(":,.") != name:
                wrong.append(f"{file.name}: {name}: {' '.join(words[:4]) or 'no comment'}")
    assert seen > 500
    assert wrong == []


@pytest.mark.unit
def test_enums_begin_with_unspecified(descriptors: list[descriptor_pb2.FileDescriptorProto]) -> None:
    enums = [enum for file in descriptors for enum in file.enum_type]
    assert len(enums) > 5
    wrong = [
        enum.name for enum in enums if enum.value[0].number != 0 or not enum.value[0].name.endswith("_UNSPECIFIED")
    ]
    assert wrong == []


@pytest.mark.e2e
def test_buf_lint() -> None:
    if shutil.which("npx") is None and not os.environ.get("CI"):
        pytest.skip("npx is not installed; buf comes as an npm package")
    done = subprocess.run(["make", "--silent", "protos-lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.e2e
def test_a_breaking_change_is_refused(tmp_path: Path) -> None:
    """The control of the check above: a field of a released message that changes its number."""
    if shutil.which("npx") is None and not os.environ.get("CI"):
        pytest.skip("npx is not installed; buf comes as an npm package")
    shutil.copytree(PROTOS, tmp_path / "protos", ignore=shutil.ignore_patterns("*.py", "*.pyi", "__pycache__"))
    for name in ("Makefile", "buf.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    steps = tmp_path / "protos" / "octavo" / "kv" / "v1" / "steps.proto"
    before = steps.read_text()
    steps.write_text(before.replace("uint64 completed_step = 4;", "uint64 completed_step = 99;"))
    assert steps.read_text() != before
    done = subprocess.run(
        ["make", "--silent", "protos-lint"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "completed_step" in done.stdout + done.stderr
