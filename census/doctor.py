"""What is installed and works together, and what a trace lacks with the nsys flag that would bring it."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from census import ranges, sources
from census import trace as tr
from census.trace import Trace

OK, LACKS, UNKNOWN = "ok", "lacks", "unknown"
_NVTX_SILENT = (0, 2, 13)  # from here on python nvtx records nothing under nsys 2023
# The one cure for both ways in which it shows: versions installed here, and a trace recorded elsewhere.
_NVTX_CURE = "pip install 'nvtx<0.2.13' or a newer nsys"
_COMPLAINTS = (2, 3)  # severities: warning and error; 4 is verbose
_LOSS = re.compile(r"(?i)dropped|\blost\b|overflow|\bnot all\b")
_RECORD = "nsys profile -t cuda,nvtx --cuda-graph-trace=node"


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what was seen, and what to do where something is missing."""

    what: str
    state: str  # ok, lacks or unknown
    seen: str
    advice: str = ""


def environment() -> list[Finding]:
    """What this machine has for recording and reading traces."""
    nsys = nsys_version()
    return [
        Finding("nsys", OK if nsys else LACKS, nsys or "not on PATH",
                "" if nsys else "install Nsight Systems to record, or to read .nsys-rep; .sqlite exports need it not"),
        *_gpu(), *_nvtx(nsys),
        _package("cupti-python", "records minfer where there is a GPU but no nsys", "record"),
        _package("pyarrow", "reads parquetdir exports", "parquet"),
        _package("distributed", "spreads many traces over hosts", "fleet"),
    ]


def nsys_version() -> str | None:
    """The version line of the nsys on PATH, None where there is none."""
    if shutil.which("nsys") is None:
        return None
    try:
        done = subprocess.run(["nsys", "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[-1].removeprefix("NVIDIA Nsight Systems version ") if done.stdout else None


def _gpu() -> list[Finding]:
    """GPU and driver through NVML, and whether a CuPy of the right CUDA version is there."""
    try:
        import pynvml

        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        cuda = pynvml.nvmlSystemGetCudaDriverVersion() // 1000  # 12040 is CUDA 12.4
        names = [str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)))
                 for i in range(pynvml.nvmlDeviceGetCount())]
        pynvml.nvmlShutdown()
    except Exception as err:  # pynvml raises its own classes, and what it finds instead of a driver varies
        return [Finding("GPU", LACKS, f"none ({err})", "traces can be read; recording uses the CPU recorder"),
                _cupy(None)]
    return [Finding("GPU", OK, f"{', '.join(names)}; driver {driver}, CUDA {cuda}"), _cupy(cuda)]


def _cupy(cuda: int | None) -> Finding:
    have = {n: v for n in (12, 13) if (v := package_version(f"cupy-cuda{n}x"))}
    seen = ", ".join(f"cupy-cuda{n}x {v}" for n, v in have.items()) or "not installed"
    if len(have) > 1:
        return Finding("CuPy", LACKS, seen, "two CuPy packages overwrite each other; uninstall both, install one")
    if not have:
        extra = f"pip install 'launch-census[cuda{min(cuda, 13)}]'" if cuda and cuda >= 12 else "only needed with a GPU"
        return Finding("CuPy", LACKS if cuda else UNKNOWN, seen, extra)
    built = next(iter(have))  # a driver runs what was built for its own or an older major version of CUDA
    if cuda is not None and built > cuda:
        return Finding("CuPy", LACKS, seen, f"needs a driver for CUDA {built}, this one is for CUDA {cuda}; use "
                       f"cupy-cuda{cuda}x or a newer driver")
    return Finding("CuPy", OK, seen)


def _nvtx(nsys: str | None) -> list[Finding]:
    have = package_version("nvtx")
    if have is None:
        return [Finding("python nvtx", LACKS, "not installed", "pip install nvtx: without it ranges are not recorded")]
    parts = tuple(int(p) for p in have.split(".")[:3] if p.isdigit())
    if nsys and nsys.startswith("2023") and parts >= _NVTX_SILENT:
        return [Finding("python nvtx", LACKS, f"{have} with nsys {nsys}",
                        f"this pair registers its domain but records no ranges; {_NVTX_CURE}")]
    return [Finding("python nvtx", OK, have)]


def package_version(package: str) -> str | None:
    """Of what is installed; None where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _package(name: str, use: str, extra: str) -> Finding:
    have = package_version(name)
    return Finding(name, OK if have else LACKS, have or "not installed",
                   "" if have else f"{use}: pip install 'launch-census[{extra}]'")


def of_file(source: str) -> list[Finding]:
    """What a trace holds and lacks. Raises CensusError where it cannot be read at all."""
    trace = sources.open_source(source)
    try:
        return of_trace(trace)
    finally:
        tr.close(trace)


def of_trace(trace: Trace) -> list[Finding]:
    """The capability report of an open trace: each concept, what it allows to say, and the flag that brings it."""
    seen = f"{trace.product} {trace.version}, schema {trace.schema}" if trace.schema else "no metadata"
    made = [Finding("export", OK if trace.schema else UNKNOWN, seen,
                    "" if trace.schema else "an export of 2022 or before")]
    wanted = (
        ("kernels", "no launches to count", _RECORD),
        ("api", "launches cannot be checked nor charged to ranges", "nsys profile -t cuda"),
        ("strings", "kernels have no names", "export it again with nsys export --type sqlite"),
        ("devices", "the device is not named", "a newer nsys, or an export with --lazy=false"),
    )
    made += [_concept(trace, concept, lost, flag) for concept, lost, flag in wanted]
    made += [_graphs(trace), _ranges(trace)]
    made += [Finding("profiler message", LACKS, text[:200], "see the nsys log of the recording")
             for text in messages(trace)]
    return made


def messages(trace: Trace) -> tuple[str, ...]:
    """What the profiler complained of while it recorded, lost events first."""
    said = [str(text) for severity, text in tr.records(trace, "diagnostics", "severity", "text")
            if severity in _COMPLAINTS or is_loss(str(text))]
    return tuple(sorted(said, key=lambda text: not is_loss(text)))


def is_loss(message: str) -> bool:
    """Whether a profiler's message says that events are missing; some versions say so at the lowest severity."""
    return _LOSS.search(message) is not None


def _concept(trace: Trace, concept: str, lost: str, flag: str) -> Finding:
    rows = trace.rows.get(concept)
    return Finding(concept, OK, f"{rows:,} rows") if rows else Finding(concept, LACKS, f"none: {lost}", flag)


def _graphs(trace: Trace) -> Finding:
    if "replays" in trace.rows:
        seen = f"{trace.rows['replays']:,} whole-graph replays, kernels inside not visible"
        return Finding("CUDA graphs", LACKS, seen,
                       "--cuda-graph-trace=node shows them (and slows the run: keep this trace for the time)")
    replayed = int((tr.columns(trace, "kernels", "node")["node"] != 0).sum())
    if not replayed:
        return Finding("CUDA graphs", OK, "no replays")
    if "births" not in trace.rows:
        return Finding("CUDA graphs", LACKS, f"{replayed:,} replayed kernels, births of their nodes not recorded",
                       "start the recording before the capture: layer and op come from it")
    return Finding("CUDA graphs", OK, f"{replayed:,} replayed kernels with their nodes' births")


def _ranges(trace: Trace) -> Finding:
    spans = ranges.load(trace)
    silent = ", ".join(spans.silent_domains)
    if silent:
        return Finding("NVTX", LACKS, f"{len(spans):,} ranges; domain {silent} is registered but has none",
                       f"python nvtx 0.2.13 and later record no ranges under nsys 2023: {_NVTX_CURE}")
    if not len(spans):
        return Finding("NVTX", LACKS, "no ranges", "nsys profile -t cuda,nvtx, and an engine that pushes ranges; "
                       "steps are found by graph or lag without")
    return Finding("NVTX", OK, f"{len(spans):,} ranges")
