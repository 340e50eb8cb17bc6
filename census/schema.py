"""What nsys exports look like, as data: one table of (concept, column, candidates), and the tables a writer fills.

Read from real exports of schema none (2020) to 3.25.0. Nothing here touches a database; the SQL that these
tables turn into is in census/trace.py.
"""

from typing import NamedTuple


class Column(NamedTuple):
    """One column of a concept's view: the first candidate that the table has, else `fallback`."""

    concept: str
    name: str
    candidates: tuple[str, ...]
    fallback: str | None  # an SQL literal for a table without any candidate; None: without it the concept is absent


# concept -> tables that may hold it, best first. A suffix _V2, _V3 on any of them is accepted too.
TABLES: dict[str, tuple[str, ...]] = {
    "kernels": ("CUPTI_ACTIVITY_KIND_KERNEL",),
    "replays": ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",),
    "copies": ("CUPTI_ACTIVITY_KIND_MEMCPY",),
    "sets": ("CUPTI_ACTIVITY_KIND_MEMSET",),
    "api": ("CUPTI_ACTIVITY_KIND_RUNTIME",),
    "nvtx": ("NVTX_EVENTS",),
    "births": ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"),  # the second: node births before 2024
    "devices": ("TARGET_INFO_GPU",),
    "cuda_devices": ("TARGET_INFO_CUDA_DEVICE",),  # since 3.17.2
    "streams": ("TARGET_INFO_CUDA_STREAM",),
    "strings": ("StringIds",),
    "meta_export": ("META_DATA_EXPORT", "EXPORT_META_DATA"),
    "meta_capture": ("META_DATA_CAPTURE",),
    "diagnostics": ("DIAGNOSTIC_EVENT",),
}


def _columns(concept: str, *specs: tuple[str, str, str | None]) -> tuple[Column, ...]:
    return tuple(Column(concept, name, tuple(cands.split()), fallback) for name, cands, fallback in specs)


# (column, candidates, fallback). Times are ns; ids of processes and threads are nsys' serialized global ids.
COLUMNS: tuple[Column, ...] = (
    *_columns(
        "kernels",
        ("start", "start", None), ("end", "end", None), ("device", "deviceId", "0"), ("stream", "streamId", "0"),
        ("pid", "globalPid", "0"), ("corr", "correlationId", "-1"),
        ("name", "demangledName shortName mangledName nameId name", None),
        ("short", "shortName demangledName mangledName nameId name", None),
        ("node", "graphNodeId", "0"),
        ("grid_x", "gridX", "0"), ("grid_y", "gridY", "0"), ("grid_z", "gridZ", "0"),
        ("block_x", "blockX", "0"), ("block_y", "blockY", "0"), ("block_z", "blockZ", "0"),
        ("registers", "registersPerThread", "0"),
    ),
    *_columns(
        "replays",
        ("start", "start", None), ("end", "end", None), ("device", "deviceId", "0"), ("stream", "streamId", "0"),
        ("pid", "globalPid", "0"), ("corr", "correlationId", "-1"), ("graph", "graphId", "0"),
    ),
    *_columns(
        "copies",
        ("start", "start", None), ("end", "end", None), ("device", "deviceId", "0"), ("stream", "streamId", "0"),
        ("pid", "globalPid", "0"), ("corr", "correlationId", "-1"), ("kind", "copyKind", "0"),
        ("bytes", "bytes", "0"), ("node", "graphNodeId", "0"),
    ),
    *_columns(
        "sets",
        ("start", "start", None), ("end", "end", None), ("device", "deviceId", "0"), ("stream", "streamId", "0"),
        ("pid", "globalPid", "0"), ("corr", "correlationId", "-1"),
        ("bytes", "bytes", "0"), ("node", "graphNodeId", "0"),
    ),
    *_columns(
        "api",
        ("start", "start", None), ("end", "end", "start"), ("tid", "globalTid", "0"), ("corr", "correlationId", "-1"),
        ("name", "nameId name", None),
    ),
    *_columns(
        "nvtx",
        ("start", "start", None), ("end", "end", "NULL"), ("type", "eventType", "59"), ("tid", "globalTid", "0"),
        ("end_tid", "endGlobalTid", "NULL"), ("text", "text", "NULL"), ("text_id", "textId", "NULL"),
        ("domain", "domainId", "0"),
    ),
    *_columns(
        "births",
        ("time", "start", None), ("tid", "globalTid", "0"), ("node", "graphNodeId", None),
        ("origin", "originalGraphNodeId", "0"),
    ),
    *_columns(
        "devices",
        ("id", "id", None), ("cuda", "cuDevice id", None), ("name", "name", None), ("sms", "smCount", "NULL"),
        ("bandwidth", "memoryBandwidth", "NULL"), ("memory", "totalMemory", "NULL"), ("clock", "clockRate", "NULL"),
    ),
    *_columns("cuda_devices", ("gpu", "gpuId", None), ("cuda", "cudaId", None), ("pid", "pid", None)),
    *_columns("streams", ("stream", "streamId", None), ("context", "contextId", "0"), ("pid", "processId", "0")),
    *_columns("strings", ("id", "id", None), ("value", "value", None)),
    *_columns("meta_export", ("name", "name", None), ("value", "value", None)),
    *_columns("meta_capture", ("name", "name", None), ("value", "value", None)),
    *_columns("diagnostics", ("severity", "severity", "0"), ("text", "text", None)),
)

# NVTX event types: push/pop and start/end ranges (70 and 71 are their extended forms), and domain creation.
NVTX_PUSH_POP = (59, 70)
NVTX_START_END = (60, 71)
NVTX_DOMAIN = 75

# copyKind -> what a ledger calls it
COPY_KINDS: dict[int, str] = {
    1: "memcpy host to device", 2: "memcpy device to host", 8: "memcpy device to device", 10: "memcpy peer to peer",
    11: "unified memory host to device", 12: "unified memory device to host", 13: "unified memory device to device",
}


# What `census scrub` keeps besides the candidates above: launch facts without any text of the machine.
SAFE_EXTRA: dict[str, tuple[str, ...]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "contextId", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread",
        "localMemoryTotal", "sharedMemoryExecuted", "clusterX", "clusterY", "clusterZ", "launchType",
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("contextId", "graphExecId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("contextId", "srcKind", "dstKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("contextId", "memKind"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("eventClass", "returnValue"),
    "CUDA_GRAPH_EVENTS": ("start", "end", "eventClass", "globalTid", "nameId", "graphId", "originalGraphId",
                          "graphExecId"),
    "CUDA_GRAPH_NODE_EVENTS": ("end", "eventClass", "nameId"),
    "NVTX_EVENTS": ("rangeId", "category", "color"),
    "TARGET_INFO_GPU": ("isDiscrete", "l2CacheSize", "chipName", "computeMajor", "computeMinor"),
}
SAFE_META = ("EXPORT_PRODUCT_%", "EXPORT_SCHEMA_VERSION%", "%CUDA_GRAPH_TRACE_OPTIONS:MODE")  # SQL LIKE patterns


def _ints(names: str, *, required: str = "") -> tuple[tuple[str, str], ...]:
    need = set(required.split())
    return tuple((n, "INTEGER NOT NULL" if n in need else "INTEGER") for n in names.split())


# table -> (column, SQL type) of schema 3.20.3: what `trace.write_export` creates and a recorder must fill, in order.
EXPORT_TABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "META_DATA_EXPORT": (("name", "TEXT NOT NULL"), ("value", "TEXT")),
    "META_DATA_CAPTURE": (("name", "TEXT NOT NULL"), ("value", "TEXT")),
    "StringIds": (("id", "INTEGER NOT NULL PRIMARY KEY"), ("value", "TEXT NOT NULL")),
    "TARGET_INFO_GPU": (
        *_ints("vmId id", required="vmId id"), ("name", "TEXT"), ("busLocation", "TEXT"),
        *_ints("isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount pwGpuId"),
        ("uuid", "TEXT"), ("luid", "INTEGER"), ("chipName", "TEXT"), ("cuDevice", "INTEGER"),
        ("ctxswDevPath", "TEXT"), ("ctrlDevPath", "TEXT"),
        *_ints("revision nodeMask constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin"
               " maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm"
               " maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ"
               " computeMajor computeMinor smMajor smMinor"),
    ),
    "TARGET_INFO_CUDA_DEVICE": _ints("gpuId cudaId pid", required="cudaId pid"),
    "CUPTI_ACTIVITY_KIND_KERNEL": _ints(
        "start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName"
        " mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ"
        " staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted"
        " graphNodeId sharedMemoryLimitConfig",
        required="start end deviceId contextId streamId demangledName shortName registersPerThread gridX gridY gridZ"
        " blockX blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _ints(
        "start end eventClass globalTid correlationId nameId returnValue callchainId",
        required="start end eventClass nameId returnValue",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _ints(
        "start end deviceId contextId greenContextId streamId correlationId globalPid bytes copyKind deprecatedSrcId"
        " srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress"
        " copyCount",
        required="start end deviceId contextId streamId bytes copyKind",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _ints(
        "start end deviceId contextId greenContextId streamId correlationId globalPid value bytes graphNodeId memKind",
        required="start end deviceId contextId streamId value bytes",
    ),
    "CUDA_GRAPH_NODE_EVENTS": _ints(
        "start end eventClass globalTid nameId graphNodeId originalGraphNodeId",
        required="start end eventClass nameId graphNodeId",
    ),
    "DIAGNOSTIC_EVENT": (
        *_ints("timestamp timestampType source severity", required="timestamp timestampType source severity"),
        ("text", "TEXT NOT NULL"), ("globalPid", "INTEGER"),
    ),
    "NVTX_EVENTS": (
        *_ints("start end eventType rangeId category color", required="start eventType"), ("text", "TEXT"),
        *_ints("globalTid endGlobalTid textId domainId uint64Value int64Value"), ("doubleValue", "REAL"),
        *_ints("uint32Value int32Value"), ("floatValue", "REAL"), ("jsonTextId", "INTEGER"), ("jsonText", "TEXT"),
        ("binaryData", "TEXT"),
    ),
}
