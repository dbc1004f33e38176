"""A model that can never be loaded ends the start with one line that names --model, before torch is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_worker.model.errors import CheckpointError
from model_worker.model.files import check_model

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65_534
LLAMA = '{"architectures": ["LlamaForCausalLM"]}'

# All that is imported before the model is looked at, first: another user need not be able to read it.
PROBE = f"""
import encodings.idna, json, os, sys
from model_worker import __main__, settings, start
models = sys.argv[1:]
if os.environ.get("AS_ANOTHER") and os.geteuid() == 0:
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
for model in models:
    sys.argv[1:] = ["--model", model]
    print(json.dumps([__main__.main(), "torch" in sys.modules]))
"""


def started(folder: Path, models: Sequence[str], **environ: str) -> dict[str, tuple[str, bool]]:
    """What each start in vain says, and whether torch had been imported when it ended, in one process."""
    environment = {**os.environ, **environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "protos")))}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *models],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [status for status, _ in ends] == [1] * len(models)
    return {model: (entry["message"], torch) for model, entry, (_, torch) in zip(models, said, ends, strict=True)}


def make_folder(place: Path, **files: str) -> Path:
    """A folder with these files; an underscore stands for a dot."""
    place.mkdir()
    for name, text in files.items():
        (place / name.replace("_", ".")).write_text(text)
    return place


def test_what_cannot_be_a_model_is_told_without_torch(tmp_path: Path) -> None:
    make_folder(tmp_path / "empty")
    make_folder(tmp_path / "other", notes_txt="")
    make_folder(tmp_path / "ggufs", some_gguf="GGUF")
    make_folder(tmp_path / "broken", config_json="{")
    make_folder(tmp_path / "anything", config_json="{}")
    make_folder(tmp_path / "weightless", config_json=LLAMA)
    make_folder(tmp_path / "pickled", config_json=LLAMA, model_bin="")
    sharded = make_folder(tmp_path / "sharded", config_json=LLAMA)
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    # As a folder of the hub's cache looks where it was mounted alone.
    (make_folder(tmp_path / "links") / "config.json").symlink_to("../../blobs/0123")
    (tmp_path / "text").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    # Looks like a model; what its weights hold is for torch's libraries to say.
    make_folder(tmp_path / "likely", config_json=LLAMA, model_safetensors="x")
    told = {
        "/nowhere": "no such model: /nowhere",
        "text/in-a-file/of": "no such model: text/in-a-file/of",
        "empty": "no config.json in empty: the folder is empty",
        "other": "no config.json in other",
        "ggufs": "no config.json in ggufs; give the file itself to load some.gguf",
        "broken": "cannot read broken/config.json: ",
        "anything": "config.json names no architecture",
        "weightless": "no weights in weightless: neither model.safetensors nor ",
        "pickled": "model.bin is a pickle, which is not read",
        "sharded": "model.safetensors.index.json names files that are not in sharded: one.safetensors",
        "links": "links/config.json is a link to ../../blobs/0123, which is not there",
        "text": "text is neither a model folder nor a GGUF file",
        "pipe": "pipe is neither a model folder nor a GGUF file",
    }
    found = started(tmp_path, [*told, "likely"])
    late, torch_was_imported = found.pop("likely")
    assert "likely/model.safetensors" in late
    assert torch_was_imported
    for model, (message, torch_was_imported) in found.items():
        assert message.startswith("--model: "), message
        assert told[model] in message
        assert not torch_was_imported, model


def test_what_may_not_be_read_names_the_user_who_must_be_able_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    closed = make_folder(tmp_path / "closed", config_json=LLAMA, model_safetensors="x")
    configuration = make_folder(tmp_path / "configuration", config_json=LLAMA, model_safetensors="x") / "config.json"
    weights = make_folder(tmp_path / "weights", config_json=LLAMA, model_safetensors="x") / "model.safetensors"
    gguf = tmp_path / "some.gguf"
    gguf.write_text("GGUF")
    for place in (closed, configuration, weights, gguf):
        place.chmod(0)
    unread = {
        "closed": "closed/config.json",
        "configuration": "configuration/config.json",
        "weights": "weights/model.safetensors",
        "some.gguf": "some.gguf",
    }
    uid = os.geteuid() or NOBODY
    for model, (message, torch_was_imported) in started(tmp_path, list(unread), AS_ANOTHER="yes").items():
        assert message == (
            f"--model: cannot read {unread[model]}: permission denied; "
            f"it must be readable by uid {uid}, which the worker runs as"
        )
        assert not torch_was_imported, model


def test_what_may_be_a_model_passes(tmp_path: Path) -> None:
    """A hub id, which only the hub can judge; a folder by one file or by an index; a GGUF file."""
    single = make_folder(tmp_path / "single", config_json=LLAMA, model_safetensors="x")
    sharded = make_folder(tmp_path / "sharded", config_json=LLAMA, one_safetensors="x")
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    (tmp_path / "file").write_bytes(b"GGUF")
    for model in (Path("owner/name"), Path("owner/name@main"), single, sharded, tmp_path / "file"):
        check_model(model)
    with pytest.raises(CheckpointError):
        check_model(Path("owner/name/more"))
