"""Guards: what contaminates a run, each alone; and that no timing can."""

import ast
import copy
import sys
import types
from pathlib import Path

import pytest

from ab_clockwork import QUIET
from census.ab import gpu, guards
from census.ab.plan import Limits

IDLE = {"sm_mhz": 345, "memory_mhz": 2619, "reasons": 1, "utilization_pct": 0, "memory_mb": 4.0, "pids": [],
        "temperature_c": 30, "power_w": 70.0, "ecc_errors": 0}  # fmt: skip


def device(**more):
    return {"before": IDLE, "after": IDLE, "reasons": 0, "sm_mhz": 1980.0, "new_ecc_errors": 0} | more


def record(pair=0, arm="A", began=0.0, ended=1.0, failed=None, value=5.0, **machine):
    return {"pair": pair, "arm": arm, "value": value, "failed": failed, "began": began, "ended": ended,
            "machine": QUIET | {"gpus": [device()]} | machine}  # fmt: skip


def window(index, **machine):
    """Three clean pairs with one run changed."""
    runs = [record(i // 2, "AB"[i % 2], began=2.0 * i, ended=2.0 * i + 1) for i in range(6)]
    runs[index]["machine"] = runs[index]["machine"] | machine
    return runs


def reasons(runs):
    return guards.contaminated(runs, Limits(), 1.0)


def test_a_clean_window_keeps_every_pair():
    assert reasons(window(0)) == {}


CASES = [
    ({"others_cpu_s": 1.2}, "other processes used 1.2 CPU cores"),
    ({"suspended_s": 30.0}, "suspended for 30.0 s"),
    ({"clock_step_s": -3600.0}, "the clock was set back by 3600.0 s"),
    ({"clock_step_s": 5.0}, "the clock was set forward by 5.0 s"),
    ({"xid": [79]}, "Xid 79"),
    ({"gpus": [device(before=IDLE | {"pids": [4711]})]}, "foreign processes on GPU 0: [4711]"),
    ({"gpus": [device(after=IDLE | {"pids": [4711]})]}, "foreign processes on GPU 0: [4711]"),
    ({"gpus": [device(before=IDLE | {"utilization_pct": 3})]}, "GPU 0 was 3% busy before the run"),
    ({"gpus": [device(before=IDLE | {"memory_mb": 104.0})]}, "100 MB of foreign memory on GPU 0"),
    ({"gpus": [device(reasons=0x40)]}, "GPU 0: HW thermal slowdown"),
    ({"gpus": [device(reasons=0x80)]}, "GPU 0: power brake"),
    ({"gpus": [device(sm_mhz=1900.0)]}, "GPU 0 ran at 1900 MHz, the window's median is 1980"),
    ({"gpus": [device(new_ecc_errors=2)]}, "2 uncorrected ECC errors on GPU 0"),
]


@pytest.mark.parametrize(("machine", "said"), CASES)
def test_each_guard_alone(machine, said):
    found = reasons(window(3, **machine))
    assert list(found) == [1] and len(found[1]) == 1
    assert found[1][0].startswith("B: ") and said in found[1][0]


@pytest.mark.parametrize("machine", [
    {"others_cpu_s": 0.9}, {"clock_step_s": 0.5}, {"gpus": [device(reasons=0x4)]},  # the power cap is the card's own
    {"gpus": [device(sm_mhz=1960.0)]}, {"gpus": [device(before=IDLE | {"memory_mb": 60.0})]},
    {"gpus": None, "xid": None}, {"gpus": [device(sm_mhz=None, new_ecc_errors=None)]}, {"others_cpu_s": None},
])  # fmt: skip
def test_what_is_within_the_limits_or_unknown_does_not_contaminate(machine):
    assert reasons(window(3, **machine)) == {}


def test_the_runs_of_a_pair_belong_to_the_same_minute():
    runs = window(0)
    for run in runs[3:]:
        run["began"] += 100
        run["ended"] += 100
    assert reasons(runs) == {1: ["B: the pair was interrupted for 101 s"]}
    for run in runs[3:]:
        run["began"] -= 3700
        run["ended"] -= 3700
    assert reasons(runs) == {1: ["B: the clock went back by 3599.0 s between the runs of the pair"]}


def test_a_failed_run_contaminates_its_pair():
    runs = window(0)
    runs[4]["failed"] = "ended with exit code 1"
    assert reasons(runs) == {2: ["A: ended with exit code 1"]}


def test_no_timing_can_contaminate():
    """Whatever the values are, the same pairs are dropped."""
    runs = window(3, others_cpu_s=5.0)
    slow = copy.deepcopy(runs)
    for i, run in enumerate(slow):
        run |= {"value": 1e6 if i == 0 else 1e-6, "reported": {"tg128": 1e9}}
    assert reasons(slow) == reasons(runs) == {1: reasons(runs)[1]}


def test_own_work_is_not_others_work():
    """A process of ours that burns a quarter of a second of CPU adds nothing to what others used."""
    import subprocess

    start = guards.before(gpu.Gpus(why="none"), Limits())
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    seen = guards.after(gpu.Gpus(why="none"), start, [])
    ours = guards._host()["ours"] - start["ours"]
    busy = guards._host()["busy"] - start["busy"]
    assert ours >= 0.5
    assert seen["others_cpu_s"] <= busy - 0.4  # ticks of 10 ms
    assert abs(seen["clock_step_s"]) < 0.1 and abs(seen["suspended_s"]) < 0.1
    assert seen["gpus"] is None and seen["xid"] is None


def fake_nvml(**answers):
    """A driver with one idle H200; `answers` replace single questions."""

    class NVMLError(Exception):
        pass

    def refuse(*args):
        raise NVMLError("Not Supported")

    memory = types.SimpleNamespace(used=4 << 20)
    questions = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: i, "nvmlDeviceGetClockInfo": lambda h, kind: (345, 2619)[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 1,
        "nvmlDeviceGetUtilizationRates": lambda h: types.SimpleNamespace(gpu=0),
        "nvmlDeviceGetMemoryInfo": lambda h, version: memory,
        "nvmlDeviceGetComputeRunningProcesses": lambda h: [], "nvmlDeviceGetTemperature": lambda h, kind: 30,
        "nvmlDeviceGetPowerUsage": lambda h: 70000, "nvmlDeviceGetTotalEccErrors": lambda h, kind, which: 0,
        "nvmlSystemGetDriverVersion": lambda: "580.1", "nvmlDeviceGetName": lambda h: "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda h: "GPU-1", "nvmlEventSetCreate": refuse,
    }  # fmt: skip
    constants = {"NVML_CLOCK_SM": 0, "NVML_CLOCK_MEM": 1, "nvmlMemory_v2": 2, "NVML_TEMPERATURE_GPU": 0,
                 "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1, "NVML_VOLATILE_ECC": 0}  # fmt: skip
    return types.SimpleNamespace(**questions | constants | answers | {"NVMLError": NVMLError})


def test_reading_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    with gpu.opened() as gpus:
        assert gpu.state(gpus) == [IDLE]
        assert gpu.identity(gpus) == [{"name": "NVIDIA H200", "uuid": "GPU-1", "driver": "580.1"}]
        assert guards.availability(gpus)["gpu"] == "read through NVML"
        start = guards.before(gpus, Limits())
        busy = [IDLE | {"sm_mhz": 1980, "reasons": 0x4}]
        polled = [guards.after(gpus, start, polls)["gpus"] for polls in ([busy, busy], [[IDLE], busy, busy], [[IDLE]])]
    worked = device(sm_mhz=1980, reasons=0x4 | 1)
    assert polled == [[worked], [worked], [device(sm_mhz=None, reasons=1)]]  # idle polls are not of its work


def test_the_devices_that_a_command_sees_are_the_ones_that_are_watched(monkeypatch):
    two = {"nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetHandleByUUID": lambda name: name}
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**two))
    for visible, handles in ((None, (0, 1)), ("1", (1,)), ("GPU-7, 0", ("GPU-7", 0))):
        with gpu.opened(visible) as gpus:
            assert gpus.handles == handles


def test_a_question_that_the_driver_does_not_answer_is_unknown(monkeypatch):
    def refuse(*args):
        raise RuntimeError("Not Supported")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetTotalEccErrors=refuse))
    with gpu.opened() as gpus:
        assert gpu.state(gpus) == [IDLE | {"ecc_errors": None}]
        assert gpu.xid(gpus) is None


def test_without_a_gpu_the_guards_say_not_available(monkeypatch):
    def missing():
        raise RuntimeError("NVML Shared Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=missing))
    with gpu.opened() as gpus:
        assert gpu.state(gpus) is None and gpu.identity(gpus) == []
        assert guards.availability(gpus)["gpu"] == "not available (NVML Shared Library Not Found)"


def test_nothing_is_ever_set_on_a_gpu():
    """Every NVML call of the package reads."""
    reads = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGet", "nvmlSystemGet", "nvmlMemory_v2", "nvmlEventSetCreate",
             "nvmlEventSetWait", "nvmlDeviceRegisterEvents", "nvmlEventTypeXidCriticalError")  # fmt: skip
    calls = set()
    for path in Path(gpu.__file__).parent.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        calls |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and n.attr.startswith("nvml")}
    assert len(calls) > 15 and all(name.startswith(reads) for name in calls)
