"""What the events of a Watch stream mean to everybody who folds one."""

from octavo.kv.v1 import steps_pb2, watch_pb2

PAGE_KINDS = (watch_pb2.EVENT_KIND_BLOCKS, watch_pb2.EVENT_KIND_TABLES, watch_pb2.EVENT_KIND_SEQUENCES)
"""Those that tell which block holds what for whom."""

_GONE = {watch_pb2.SEQUENCE_EVENT_TYPE_RELEASED, watch_pb2.SEQUENCE_EVENT_TYPE_REJECTED}


class Gap(Exception):
    """An event is missing: only a snapshot helps."""


def set_table(tables: dict[int, list[int]], changed: watch_pb2.TableChanged) -> None:
    """Change a table from its first changed entry on; one that is empty is forgotten."""
    table = tables.setdefault(changed.seq, [])
    table[changed.first_index :] = changed.blocks
    if not table:
        del tables[changed.seq]


def is_gone(event: watch_pb2.SequenceEvent) -> bool:
    """Whether the manager holds nothing for the sequence any more."""
    return event.type in _GONE or event.preempted.mode == steps_pb2.PREEMPTION_MODE_RECOMPUTE
