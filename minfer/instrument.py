"""The only place that pushes NVTX ranges or logs launches: the walk over a plan's launches is here.

Ranges are in the NVTX domain `minfer`, nested: step (`decode N`, `prefill N`, `warmup decode N`; N = first position),
layer (`layer N`), op (`matmul attn_q`). The launch log carries the same ranges and every launch as JSON lines, so that
a machine without a profiler can still be given a trace; `census` turns it into the nsys export schema.

    {"log": "minfer-launches", "version": 1, "pid": 7, "tid": 7, "clock": "monotonic ns", "device": "..."}
    ["range", text, start, end]                       in the order they close
    ["launch", kernel, [gx,gy,gz], [bx,by,bz], start, end]

With MINFER_CUPTI_LOG the log ("minfer-cupti", its clock CUPTI's) holds the ranges and, in place of host launches, the
rows of `minfer.cuda.cupti`; its last line is `["end", records dropped]`.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import nvtx

from minfer import switches
from minfer.cuda import cupti
from minfer.errors import UserError
from minfer.plan import Launch

DOMAIN = "minfer"

Work = Sequence[tuple[Launch, Callable[[], None]]]


@dataclass
class Tracer:
    """Where ranges and launches of this process go. Any of the three may be off; all off costs one test a launch."""

    nvtx: bool = False
    log: TextIO | None = None
    echo: TextIO | None = None  # MINFER_GRAPH_TRACE
    gpu: cupti.Collector | None = None  # writes into the log too
    clock: Callable[[], int] = time.monotonic_ns  # of the log
    _open: list[tuple[str, int]] = field(default_factory=list)
    _lines: list[list[Any]] = field(default_factory=list)

    def push(self, text: str) -> None:
        if self.nvtx:
            nvtx.push_range(text, domain=DOMAIN)
        if self.log is not None:
            self._open.append((text, self.clock()))

    def pop(self) -> None:
        if self.log is not None:
            text, start = self._open.pop()
            self._lines.append(["range", text, start, self.clock()])
        if self.nvtx:
            nvtx.pop_range(domain=DOMAIN)

    def run(self, launch: Launch, call: Callable[[], None]) -> None:
        if self.echo is not None:
            print(f"{launch.layer} {launch.op} {launch.name}: {launch.kernel} {launch.grid}", file=self.echo)
        if self.log is None or self.gpu is not None:
            call()
            return
        start = self.clock()
        call()
        self._lines.append(["launch", launch.kernel, launch.grid, launch.block, start, self.clock()])

    def flush(self) -> None:
        """Write what a finished step logged; called between steps so that writing is in no range."""
        if self.gpu is not None:
            self._lines += self.gpu.take()
        if self.log is not None and self._lines:
            self.log.writelines(json.dumps(line) + "\n" for line in self._lines)
            self.log.flush()
            self._lines.clear()

    def close(self) -> None:
        """Write what is left, at the end of the process."""
        if self.gpu is not None:
            self._lines += self.gpu.stop()
            self.gpu = None
        self.flush()
        if self.log is not None:
            self.log.close()


def walk(tracer: Tracer, step: str, work: Work) -> None:
    """Run the launches of one step in order, each inside its step, layer and op ranges."""
    tracer.push(step)
    layer: int | None = None
    for launch, call in work:
        if launch.layer != layer:
            if layer is not None:
                tracer.pop()
            layer = launch.layer
            if layer is not None:
                tracer.push(f"layer {layer}")
        tracer.push(f"{launch.op} {launch.name}")
        tracer.run(launch, call)
        tracer.pop()
    if layer is not None:
        tracer.pop()
    tracer.pop()
    tracer.flush()


def open_tracer(device: str) -> Tracer:
    """The tracer that this process's switches ask for; `device` is named in the log's first line."""
    wanted = [name for name in ("MINFER_LAUNCH_LOG", "MINFER_CUPTI_LOG") if switches.current()[name] is not None]
    if len(wanted) > 1:
        raise UserError(f"{' and '.join(wanted)} are both set: a process writes one log; unset one")
    tracer = Tracer(
        nvtx=switches.flag("MINFER_NVTX"),
        echo=sys.stderr if switches.flag("MINFER_GRAPH_TRACE") else None,
    )
    if wanted:
        tracer.log = _open_file(wanted[0])
        _start_log(tracer, device, wanted[0] == "MINFER_CUPTI_LOG")
    return tracer


def _open_file(switch: str) -> TextIO:
    path = str(switches.current()[switch])
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"switch {switch}={path!r} cannot be written: {error.strerror}; name a file") from None


def _start_log(tracer: Tracer, device: str, with_gpu: bool) -> None:
    kind, clock = ("minfer-cupti", "cupti ns") if with_gpu else ("minfer-launches", "monotonic ns")
    if with_gpu:
        tracer.gpu = cupti.start()
        tracer.clock = tracer.gpu.clock
    head = {"log": kind, "version": 1, "pid": os.getpid(), "tid": threading.get_native_id(), "clock": clock}
    assert tracer.log is not None
    tracer.log.write(json.dumps(head | {"device": device}) + "\n")
    atexit.register(tracer.close)
