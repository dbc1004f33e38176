"""Record and replay: the same requests get the same answers, from another manager and over the wire."""

import errno
import io
import random
import urllib.request

import grpc
import pytest
from kv_world import World
from test_kv_worlds import REGIMES

from kv_manager import replay as replay_module
from kv_manager.core.manager import Manager
from kv_manager.recording import CutRecordError, RecordingManager, open_record, read_records
from kv_manager.replay import RemoteTarget, main, replay
from octavo.kv.v1 import attach_pb2, inspect_pb2, kv_manager_pb2, kv_manager_pb2_grpc, record_pb2

pytestmark = pytest.mark.unit


def record_life(regime, seed, file):
    """A whole life on a manager that records; replays of steps in it leave no record."""
    manager = RecordingManager(file, first_epoch=1_000)

    def attach(spec, live):
        parts = [attach_pb2.AttachRequest(pool=spec)]
        parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
        return manager.attach(parts).header.epoch

    world = World(regime, random.Random(seed), attach, manager.step)
    while not world.finished:
        world.tick()
    world.finish()
    return manager


@pytest.mark.parametrize("name", ["everything, fenced, replays", "everything, quotas", "beams, swap", "restarts"])
def test_a_record_gets_the_same_answers_again(name):
    file = io.BytesIO()
    for seed in range(5):
        record_life(REGIMES[name], seed, file)
        file.seek(0)
        played = list(replay(read_records(file), Manager()))
        assert len(played) > 5
        assert [one for one in played if not one.equal] == []
        file = io.BytesIO()


def test_another_answer_is_seen():
    file = io.BytesIO()
    record_life(REGIMES["ordered, recompute"], 1, file)
    file.seek(0)
    records = list(read_records(file))
    step = next(record for record in records if record.WhichOneof("entry") == "step" and record.step.response.grants)
    step.step.response.grants[0].granted_tokens += 1
    assert [one.kind for one in replay(iter(records), Manager()) if not one.equal] == ["step"]


def test_operators_and_expiry_are_played_too():
    file = io.BytesIO()
    manager = record_life(REGIMES["ordered, recompute"], 1, file)
    epoch = manager.pools()[0].epoch
    manager.reset_prefix_cache(kv_manager_pb2.ResetPrefixCacheRequest(pool="world"))
    manager.drain(kv_manager_pb2.DrainRequest(pool="world"))
    for _ in range(10):
        manager.tick(1_000)
    assert manager.expire("world", epoch)
    file.seek(0)
    played = list(replay(read_records(file), Manager()))
    assert [one.kind for one in played][-3:] == ["reset", "drain", "expiry"]
    assert all(one.equal for one in played)


def read_until_cut(content):
    """How many records can be read before the file turns out to be cut off."""
    read = []
    with pytest.raises(CutRecordError, match="cut off"):
        read.extend(read_records(io.BytesIO(content)))
    return len(read)


def test_a_record_cut_off_is_read_as_far_as_it_goes_and_called_cut():
    file = io.BytesIO()
    manager = record_life(REGIMES["ordered, recompute"], 1, file)
    whole = len(list(read_records(io.BytesIO(file.getvalue()))))
    before = len(file.getvalue())
    spec = attach_pb2.PoolSpec(pool="p" * 200, worker_id="w", num_blocks=8, block_size=4, reuse_regime=1)
    manager.attach([attach_pb2.AttachRequest(pool=spec)])
    content = file.getvalue()
    assert content[before] >= 0x80  # above 127 bytes long: its length takes two bytes, and a cut may fall between them
    for end in (before + 1, before + 2, before + 3, len(content) - 1):
        assert read_until_cut(content[:end]) == whole
    assert len(list(read_records(io.BytesIO(content[:before])))) == whole
    with pytest.raises(ValueError, match="damaged"):
        list(read_records(io.BytesIO(content[:before] + b"\x03abc")))
    with pytest.raises(ValueError, match="no message is 34359738367 bytes long"):
        list(read_records(io.BytesIO(content[:before] + b"\xff\xff\xff\xff\x7f")))


@pytest.mark.parametrize("room", [0, 10, 1_000])
def test_a_disk_that_is_full_ends_the_record_and_nothing_else(room, caplog):
    """A header takes some 40 bytes, the life more than 1,000; what fits is kept, and one line says that it ends."""

    class Disk(io.RawIOBase):
        def __init__(self):
            self.content = b""

        def writable(self):
            return True

        def write(self, data):
            taken = bytes(data)[: room - len(self.content)]
            if not taken:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.content += taken
            return len(taken)

    disk, free = Disk(), io.BytesIO()
    full = record_life(REGIMES["everything"], 3, io.BufferedWriter(disk, 64))
    whole = record_life(REGIMES["everything"], 3, free)
    full.close()
    assert len(free.getvalue()) > 1_000
    assert (full.recording, whole.recording) == (False, True)
    assert full.pools()[0].totals == whole.pools()[0].totals
    assert free.getvalue().startswith(disk.content)
    assert len(disk.content) == room
    assert [(line.levelname, "No space left" in line.message) for line in caplog.records] == [("ERROR", True)]


def test_a_new_record_takes_the_next_free_name(tmp_path):
    path, said = tmp_path / "life.record", []
    for _ in range(3):
        file, name = open_record(path)
        RecordingManager(file).close()
        said.append(name.name)
    assert said == ["life.record", "life.record.1", "life.record.2"]
    assert all(list(read_records((tmp_path / name).open("rb"))) == [] for name in said)
    (tmp_path / "empty").touch()
    file, name = open_record(tmp_path / "empty")
    file.close()
    assert name.name == "empty"
    with pytest.raises(IsADirectoryError):
        open_record(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x03abc", b"\x02\x0a\x00"])
def test_what_is_no_record_is_refused(content):
    with pytest.raises(ValueError, match="record"):
        list(read_records(io.BytesIO(content)))


def test_a_future_format_is_refused():
    header = record_pb2.Record(header=record_pb2.RecordHeader(format_version=2)).SerializeToString()
    with pytest.raises(ValueError, match="format 2"):
        list(read_records(io.BytesIO(bytes([len(header)]) + header)))


def test_a_record_without_its_attach_is_refused():
    file = io.BytesIO()
    record_life(REGIMES["ordered, recompute"], 1, file)
    file.seek(0)
    records = read_records(file)
    assert next(records).WhichOneof("entry") == "attach"
    with pytest.raises(ValueError, match="'world' before it is attached"):
        list(replay(records, Manager()))


@pytest.mark.parametrize(
    "entry",
    [
        record_pb2.Record(),
        record_pb2.Record(header=record_pb2.RecordHeader()),
        record_pb2.Record(attach=record_pb2.RecordedAttach()),
    ],
)
def test_an_entry_that_cannot_be_played_is_refused(entry):
    with pytest.raises(ValueError, match="none that is played"):
        list(replay(iter([entry]), Manager()))


def test_a_refusal_of_what_was_recorded_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    path = tmp_path / "record"
    with path.open("wb") as file:
        record_life(REGIMES["ordered, recompute"], 1, file)
    monkeypatch.setattr(replay_module, "Manager", lambda: Manager(max_blocks=1))
    assert main([str(path)]) == 1
    assert "the manager refuses what was recorded: " in capsys.readouterr().err


@pytest.mark.e2e
def test_a_manager_that_is_not_there_is_said_in_a_line(tmp_path, capsys):
    path = tmp_path / "record"
    with path.open("wb") as file:
        record_life(REGIMES["ordered, recompute"], 1, file)
    assert main([str(path), "--target", "127.0.0.1:1"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


@pytest.mark.e2e
def test_the_channel_to_a_target_is_closed_whatever_happens(run_manager, tmp_path, monkeypatch):
    opened = []

    def open_channel(address):
        opened.append(grpc.insecure_channel(address))
        return opened[-1]

    monkeypatch.setattr(replay_module, "open_channel", open_channel)
    good, bad = tmp_path / "good", tmp_path / "bad"
    with good.open("wb") as file:
        record_life(REGIMES["ordered, recompute"], 1, file)
    bad.write_bytes(b"no record")
    with run_manager("--metrics", "") as manager:
        assert [main([str(path), "--target", manager.grpc]) for path in (good, bad)] == [0, 2]
        assert len(opened) == 2
        for channel in opened:
            with pytest.raises(ValueError, match="closed"):
                kv_manager_pb2_grpc.KvManagerServiceStub(channel).ListPools(inspect_pb2.ListPoolsRequest())


@pytest.mark.e2e
def test_a_process_records_and_another_plays_it(run_manager, tmp_path, capsys):
    path = tmp_path / "life.octavo-record"
    with run_manager("--metrics", "", "--record", str(path)) as manager:
        target = RemoteTarget(manager.stub)

        def attach(spec, live):
            return target.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch

        world = World(REGIMES["everything"], random.Random(3), attach, target.step)
        while not world.finished:
            world.tick()
    with run_manager("--metrics", "") as other:
        assert main([str(path), "--target", other.grpc]) == 0
    assert "0 answers differ" in capsys.readouterr().out
    assert main([str(path)]) == 0
    assert main([str(tmp_path / "missing")]) == 2


@pytest.mark.e2e
def test_what_cannot_be_recorded_is_served(run_manager):
    """Every call of a life is answered, the log says once that the record ends, and a metric says so for good."""
    with run_manager("--metrics", "127.0.0.1:0", "--record", "/dev/full") as manager:
        target = RemoteTarget(manager.stub)

        def attach(spec, live):
            return target.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch

        world = World(REGIMES["everything"], random.Random(3), attach, target.step)
        while not world.finished:
            world.tick()
        target.drain(kv_manager_pb2.DrainRequest(pool="world"))
        target.leave()
        with urllib.request.urlopen(f"http://{manager.metrics}/metrics") as answer:
            assert "\noctavo_kv_recording 0.0\n" in answer.read().decode()
        manager.process.terminate()
        assert manager.process.wait(60) == 0
        (line,) = manager.log()
        assert '"ERROR"' in line
        assert "serving goes on: /dev/full: No space left on device; a restart begins another one" in line


@pytest.mark.e2e
def test_a_restarted_manager_keeps_the_record_before(run_manager, tmp_path):
    path = tmp_path / "life.record"
    path.write_bytes(b"what went wrong yesterday")
    with run_manager("--metrics", "", "--record", str(path), "--log-level", "info") as manager:
        manager.process.terminate()
        assert manager.process.wait(60) == 0
        assert f"recording to {path}.1" in "\n".join(manager.log())
    assert path.read_bytes() == b"what went wrong yesterday"
    assert list(read_records((tmp_path / "life.record.1").open("rb"))) == []
