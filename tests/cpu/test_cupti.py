"""An engine that records its own GPU: the collector on a stand-in for CUPTI, and logs with known answers as traces."""

import json
import sys
import threading
from types import SimpleNamespace

import pytest

from census import cuptilog, doctor, ledger, record, run
from census import trace as tr
from census.errors import CensusError
from census.reconcile import reconcile
from fake_cupti import ActivityKind, FakeCupti, driver_api_trace_cbid, runtime_api_trace_cbid
from minfer import instrument, switches
from minfer.cuda import cupti
from minfer.devices import where
from minfer.engine import plan_step
from minfer.errors import UserError
from minfer.gguf import open_gguf
from tiny import write_llama


@pytest.fixture
def gpu(monkeypatch):
    """The stand-in, installed as the module that minfer imports."""
    fake = FakeCupti(tid=threading.get_native_id())
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=fake))
    return fake


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The file that MINFER_CUPTI_LOG names."""
    path = tmp_path / "cupti.jsonl"
    monkeypatch.setenv("MINFER_CUPTI_LOG", str(path))
    switches.current.cache_clear()
    yield path
    switches.current.cache_clear()


@pytest.fixture
def plan(tmp_path):
    """The plan of a CUDA decode step of a two-layer model."""
    return plan_step(open_gguf(write_llama(tmp_path / "m.gguf")), where("cuda", None), 4)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def decode(gpu, plan, *, graph, steps=3):
    """What the engine does on CUDA: an eager warm-up step, a capture, replays; or every step eager."""
    tracer = instrument.open_tracer("Some GPU")
    work = [(x, lambda x=x: gpu.launch(x)) for x in plan.launches]
    gpu.copy()
    instrument.walk(tracer, "warmup decode 0", work)
    made = None
    for step in range(steps):
        if graph and made is None:
            gpu.begin_capture()
            instrument.walk(tracer, "capture", work)
            made = gpu.end_capture()
        if made is None:
            instrument.walk(tracer, f"decode {step}", work)
        else:
            tracer.push(f"decode {step}")
            gpu.replay(made)
            tracer.pop()
            tracer.flush()
    tracer.close()


def exported(log, tmp_path):
    path = tmp_path / "t.sqlite"
    tr.write_export(path, cuptilog.export_tables(log, "1.0"))
    return path


@pytest.mark.parametrize("pointers", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_plan_and_trace_are_equal_launch_for_launch_with_layer_and_op(gpu, log, plan, tmp_path, graph, pointers):
    gpu.pointers = pointers  # versions of cupti-python hand callbacks objects or addresses
    decode(gpu, plan, graph=graph)
    trace = exported(log, tmp_path)
    held = reconcile([{"kernel": x.kernel, "name": x.name, "layer": x.layer} for x in plan.launches],
                     run.step_kernels(trace))  # fmt: skip
    assert held.holds and held.matching == 3
    made = ledger.of_file(str(trace))
    n = len(plan.launches)
    assert made.steps.method == "nvtx" and made.steps.excluded["warm-up and prefill"] == n
    assert made.identity.replayed == (3 * n if graph else 0) and made.identity.without_launch == 0
    assert made.identity.captured == (n if graph else 0) and made.identity.launches_without_kernel == 0
    by_op, by_layer = {}, {}
    for x in plan.launches:
        by_op[f"{x.op} {x.name}"] = by_op.get(f"{x.op} {x.name}", 0) + 1
        layer = "(no layer)" if x.layer is None else f"layer {x.layer}"
        by_layer[layer] = by_layer.get(layer, 0) + 1
    ops, layers = (ledger.of_file(str(trace), by=by).rows for by in ("op", "layer"))
    assert {r.key: r.launches_per_step for r in ops} == by_op
    assert {r.key: r.launches_per_step for r in layers} == by_layer
    assert not made.warnings


def test_without_births_the_replayed_launches_have_no_layer_and_it_is_said(gpu, log, plan, tmp_path):
    decode(gpu, plan, graph=True)
    kept = [line for line in log.read_text().splitlines() if not line.startswith('["node"')]
    log.write_text("\n".join(kept) + "\n")
    made = ledger.of_file(str(exported(log, tmp_path)), by="layer")
    assert {r.key for r in made.rows} == {"(no layer)"} and "no recorded node birth" in " ".join(made.warnings)


def test_times_are_the_ones_cupti_gave(gpu, log, plan, tmp_path):
    """10 ns a launch, one after the other: a replayed step of n launches has 10 n ns of device time and no gaps."""
    decode(gpu, plan, graph=True)
    total, n = ledger.of_file(str(exported(log, tmp_path))).total, len(plan.launches)
    assert (total.step_us, total.gap_us_per_step) == (pytest.approx(n * 0.010), pytest.approx(0, abs=1e-9))


def test_only_calls_that_device_work_comes_from_are_recorded(gpu, log, plan):
    decode(gpu, plan, graph=True)
    assert gpu.silenced == {(ActivityKind.RUNTIME, int(runtime_api_trace_cbid.cudaGetDevice_v3020)),
                            (ActivityKind.DRIVER, int(driver_api_trace_cbid.cuCtxGetCurrent))}  # fmt: skip
    assert {x[1] for x in lines(log)[1:] if x[0] == "api"} == {
        "cuLaunchKernel", "cudaGraphLaunch_v10000", "cudaStreamBeginCapture_v10000", "cudaMemcpyAsync_v3020"
    }  # fmt: skip
    assert gpu.thread_ids == 1 and not gpu.kinds and not gpu.subscribed  # system thread ids; all off at the end


def test_the_log_begins_with_who_wrote_it_and_ends_with_what_was_dropped(gpu, log, plan):
    gpu.dropped = 3
    decode(gpu, plan, graph=False)
    head, *rest = lines(log)
    assert (head["log"], head["version"], head["device"]) == ("minfer-cupti", 1, "Some GPU")
    assert head["tid"] == threading.get_native_id() and rest[-1] == ["end", 3]
    assert not [x for x in rest if x[0] == "launch"]  # CUPTI's kernels stand in for the host's launches


@pytest.mark.parametrize(("cut", "said"), [
    (lambda text: text, []),
    (lambda text: text.replace('["end", 0]', '["end", 12]'), ["12 records dropped: CUPTI had no buffer for them"]),
    (lambda text: text.replace('["end", 0]\n', ""), ["the log has no end: the engine was killed"]),
    (lambda text: text.replace('["end", 0]', '["note", "a birth is missing"]\n["end", 0]'), ["a birth is missing"]),
])  # fmt: skip
def test_what_is_missing_is_a_message_of_the_trace(gpu, log, plan, tmp_path, cut, said):
    decode(gpu, plan, graph=False)
    log.write_text(cut(log.read_text()))
    messages = record.check(exported(log, tmp_path))
    assert len(messages) == len(said) and all(m.startswith(s) for m, s in zip(messages, said, strict=True))


def test_a_callback_that_fails_costs_a_note_not_the_capture(gpu, log, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "get_graph_node_id", lambda handle: 1 // 0)
    decode(gpu, plan, graph=True)
    messages = record.check(exported(log, tmp_path))
    assert len(messages) == 5 and "birth was not recorded: ZeroDivisionError" in messages[0]


def test_an_error_at_the_end_costs_a_note_not_the_records(gpu, log, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "unsubscribe", lambda subscriber: 1 // 0)
    decode(gpu, plan, graph=True)
    trace = exported(log, tmp_path)
    assert record.check(trace)[0].startswith("CUPTI did not end the recording")
    assert ledger.of_file(str(trace)).steps.count == 3


def test_an_export_says_how_it_was_recorded(gpu, log, plan, tmp_path):
    decode(gpu, plan, graph=True)
    path = exported(log, tmp_path)
    opened = tr.open_trace(path)
    assert opened.product == "launch-census in-process recorder (CUPTI)" and opened.graph_mode == "Node"
    assert [d.name for d in opened.devices] == ["Some GPU"] and opened.rows["copies"] == 1
    tr.close(opened)
    lacking = [f.what for f in doctor.of_file(str(path)) if f.state == doctor.LACKS]
    assert lacking == []


def test_a_hand_made_log_row_by_row(tmp_path):
    """Two kernels, a copy, a set, a birth with its original: every column from one place of one line."""
    log = tmp_path / "l.jsonl"
    head = {"log": "minfer-cupti", "version": 1, "pid": 5, "tid": 9, "clock": "cupti ns", "device": "G"}
    rows = [
        ["kernel", "_Z3fooIiEvPT_", [4, 2, 1], [128, 1, 1], 2000, 2500, 1, 1, 13, 70, 0, 40, 1024, 2048, 8],
        ["kernel", "bar", [1, 1, 1], [32, 1, 1], 2500, 2600, 1, 1, 13, 71, 8589934593, 16, 0, 0, 0],
        ["memcpy", 2, 64, 2700, 2710, 1, 1, 13, 72, 0, 2, 1],
        ["memset", 0, 32, 2720, 2725, 1, 1, 13, 73, 0, 2],
        ["api", "cuLaunchKernel", 1500, 1600, 9, 70, 0],
        ["node", 1200, 9, 8589934593, 4294967297],
        ["range", "decode 0", 1000, 3000],
        ["end", 0],
    ]
    log.write_text("".join(json.dumps(x) + "\n" for x in [head, *rows]))
    tables = cuptilog.export_tables(log, "1.0")
    texts = dict(tables["StringIds"])

    def named(table, row=0):
        columns = [name for name, _ in tr.EXPORT_TABLES[table]]
        return {k: v for k, v in zip(columns, tables[table][row], strict=True) if v is not None}

    first, second = named("CUPTI_ACTIVITY_KIND_KERNEL"), named("CUPTI_ACTIVITY_KIND_KERNEL", 1)
    names = {k: texts[first.pop(k)] for k in ("demangledName", "shortName", "mangledName")}
    assert names == {"demangledName": "void foo<int>(int*)", "shortName": "foo", "mangledName": "_Z3fooIiEvPT_"}
    assert first == {
        "start": 1000, "end": 1500, "deviceId": 1, "contextId": 1, "streamId": 13, "correlationId": 70,
        "globalPid": 5 << 24, "registersPerThread": 40, "gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1,
        "blockZ": 1, "staticSharedMemory": 1024, "dynamicSharedMemory": 2048, "localMemoryPerThread": 8,
        "localMemoryTotal": 0, "gridId": 0,
    }  # fmt: skip
    assert second["graphNodeId"] == 8589934593 and texts[second["demangledName"]] == "bar"
    place = {"deviceId": 1, "contextId": 1, "streamId": 13, "globalPid": 5 << 24}
    assert named("CUPTI_ACTIVITY_KIND_MEMCPY") == {
        **place, "start": 1700, "end": 1710, "correlationId": 72, "bytes": 64, "copyKind": 2, "srcKind": 2,
        "dstKind": 1}  # fmt: skip
    assert named("CUPTI_ACTIVITY_KIND_MEMSET") == {
        **place, "start": 1720, "end": 1725, "correlationId": 73, "value": 0, "bytes": 32, "memKind": 2}  # fmt: skip
    born = named("CUDA_GRAPH_NODE_EVENTS")
    assert (born["start"], born["graphNodeId"], born["originalGraphNodeId"]) == (200, 8589934593, 4294967297)
    assert born["globalTid"] == 5 << 24 | 9 and born["eventClass"] == 77
    called = named("CUPTI_ACTIVITY_KIND_RUNTIME")
    assert (called["start"], called["end"], called["globalTid"]) == (500, 600, 5 << 24 | 9)
    assert named("TARGET_INFO_GPU")["name"] == "G" and named("TARGET_INFO_GPU")["cuDevice"] == 1


def test_a_run_without_kernels_is_refused(tmp_path):
    (tmp_path / "cupti.jsonl").write_text(
        '{"log": "minfer-cupti", "version": 1, "pid": 5, "tid": 9, "device": "G"}\n["end", 0]\n')  # fmt: skip
    with pytest.raises(CensusError, match="CUPTI recorded no kernel"):
        record.CUPTI.finish(tmp_path, tmp_path / "t.sqlite")
    assert not (tmp_path / "t.sqlite").exists()


def test_a_launch_log_is_no_cupti_log(tmp_path):
    (tmp_path / "x").write_text('{"log": "minfer-launches", "version": 1, "pid": 5, "tid": 9, "device": "G"}\n')
    with pytest.raises(CensusError, match="not a log of kind minfer-cupti, version 1"):
        cuptilog.export_tables(tmp_path / "x", "1.0")


@pytest.mark.parametrize(("name", "expected"), [
    ("argmax_f32", "argmax_f32"), ("_Znonsense", "_Znonsense"),
    ("_ZN7cutlass6KernelI3FooEEvNT_6ParamsE", "void cutlass::Kernel<Foo>(Foo::Params)"),
])  # fmt: skip
def test_names_are_demangled_as_nsys_does(name, expected):
    assert cuptilog.demangled(name) == expected


def test_without_cupti_python_it_is_one_line(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(UserError, match=r"needs cupti-python .*pip install 'launch-census\[record\]'"):
        instrument.open_tracer("Some GPU")


def test_a_refusal_of_cupti_is_one_line(gpu, log, monkeypatch):
    def refuse(*args):
        raise RuntimeError("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    monkeypatch.setattr(gpu, "subscribe", refuse)
    with pytest.raises(UserError, match=r"CUPTI cannot record here \(ERROR_MULTIPLE.*another profiler"):
        instrument.open_tracer("Some GPU")


def test_two_logs_at_once_are_refused(gpu, log, tmp_path, monkeypatch):
    monkeypatch.setenv("MINFER_LAUNCH_LOG", str(tmp_path / "other"))
    switches.current.cache_clear()
    with pytest.raises(UserError, match="MINFER_LAUNCH_LOG and MINFER_CUPTI_LOG are both set"):
        instrument.open_tracer("Some GPU")


def test_rows_that_come_while_others_are_taken_are_not_lost(gpu):
    """CUPTI delivers on a thread of its own."""
    made = cupti.start()
    sets = [SimpleNamespace(kind=ActivityKind.MEMSET, value=0, bytes=i, memory_kind=2, **gpu._spent(0, 0))
            for i in range(20_000)]  # fmt: skip
    thread = threading.Thread(target=lambda: [made._completed([x]) for x in sets])
    thread.start()
    taken = []
    while thread.is_alive():
        taken += made.take()
    assert [row[2] for row in [*taken, *made.take()]] == list(range(20_000))
