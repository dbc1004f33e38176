"""Record and replay: the same requests get the same answers, from another manager and over the wire."""

import io
import random

import grpc
import pytest
from kv_world import World
from test_kv_worlds import REGIMES

from kv_manager import replay as replay_module
from kv_manager.core.manager import Manager
from kv_manager.recording import RecordingManager, read_records
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


def test_a_record_cut_off_is_read_as_far_as_it_goes():
    file = io.BytesIO()
    record_life(REGIMES["ordered, recompute"], 1, file)
    whole = len(list(read_records(io.BytesIO(file.getvalue()))))
    assert len(list(read_records(io.BytesIO(file.getvalue()[:-3])))) == whole - 1


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
