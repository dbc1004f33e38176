from octavo.kv.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AdmitVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADMIT_VERDICT_UNSPECIFIED: _ClassVar[AdmitVerdict]
    ADMIT_VERDICT_NOW: _ClassVar[AdmitVerdict]
    ADMIT_VERDICT_LATER: _ClassVar[AdmitVerdict]
    ADMIT_VERDICT_NEVER: _ClassVar[AdmitVerdict]
ADMIT_VERDICT_UNSPECIFIED: AdmitVerdict
ADMIT_VERDICT_NOW: AdmitVerdict
ADMIT_VERDICT_LATER: AdmitVerdict
ADMIT_VERDICT_NEVER: AdmitVerdict

class MatchPrefixRequest(_message.Message):
    __slots__ = ("pools", "token_ids", "root", "include_digests")
    POOLS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedScalarFieldContainer[str]
    token_ids: bytes
    root: _common_pb2.PrefixRoot
    include_digests: bool
    def __init__(self, pools: _Optional[_Iterable[str]] = ..., token_ids: _Optional[bytes] = ..., root: _Optional[_Union[_common_pb2.PrefixRoot, _Mapping]] = ..., include_digests: bool = ...) -> None: ...

class MatchPrefixResponse(_message.Message):
    __slots__ = ("header", "matches")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    matches: _containers.RepeatedCompositeFieldContainer[PoolMatch]
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., matches: _Optional[_Iterable[_Union[PoolMatch, _Mapping]]] = ...) -> None: ...

class PoolMatch(_message.Message):
    __slots__ = ("header", "cached_tokens", "block_size", "stats", "digests")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    cached_tokens: int
    block_size: int
    stats: _common_pb2.PoolStats
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., cached_tokens: _Optional[int] = ..., block_size: _Optional[int] = ..., stats: _Optional[_Union[_common_pb2.PoolStats, _Mapping]] = ..., digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CanAdmitRequest(_message.Message):
    __slots__ = ("pool", "token_ids", "root", "again", "beside_blocks")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    BESIDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    token_ids: bytes
    root: _common_pb2.PrefixRoot
    again: bool
    beside_blocks: int
    def __init__(self, pool: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., root: _Optional[_Union[_common_pb2.PrefixRoot, _Mapping]] = ..., again: bool = ..., beside_blocks: _Optional[int] = ...) -> None: ...

class CanAdmitResponse(_message.Message):
    __slots__ = ("header", "verdict", "needed", "available", "cached_tokens")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    verdict: AdmitVerdict
    needed: int
    available: int
    cached_tokens: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., verdict: _Optional[_Union[AdmitVerdict, str]] = ..., needed: _Optional[int] = ..., available: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...
