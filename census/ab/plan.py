"""What a window will run, as plain data: written to disk before the first run and never changed after it.

The order of each pair is drawn beforehand, from a seed, with equally many AB and BA: under this design a drift of the
machine cannot make a winner. The rule of the verdict (bar, delta, guards) stands in the same file.
"""

import os
import random
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from census.ab.metric import Condition
from census.errors import CensusError

ARMS = re.compile(r"[AB]'?")  # the arms of an order label such as AB or BA'A, in the order they run
# Variables that change what a command does or how fast: recorded, and a window goes on only where they are the same.
_WATCHED = re.compile(r"(MINFER|GGML|LLAMA|CUDA|CUPY|CUBLAS|NVIDIA|NCCL|OMP|MKL|OPENBLAS|PYTHON|LC)_.*"
                      r"|PYTHON[A-Z]+|LD_PRELOAD|LD_LIBRARY_PATH|LANG|MALLOC_.*|NSYS_.*|NVTX_.*")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL")  # windows are shared: these are never written down
_ATTACHED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH", "MINFER_LAUNCH_LOG",
             "CUDA_LAUNCH_BLOCKING", "COMPUTE_PROFILE")
_PROFILERS = ("nsys", "ncu", "nvprof", "nsys-launcher")
_SHELL = {"|", "||", "&&", ";", ">", ">>", "<", "&"}
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.S)


@dataclass(frozen=True)
class Arm:
    """One side: a command without a shell, and the variables set for it on top of the caller's environment."""

    command: tuple[str, ...]
    env: dict[str, str]

    @property
    def text(self) -> str:
        """As one would type it."""
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.env.items()), shlex.join(self.command)])


@dataclass(frozen=True)
class Rule:
    """What decides, declared before the first run."""

    pairs: int
    higher: bool  # is a higher value better?
    alpha: float = 0.05  # of the two-sided sign test
    delta_pct: float = 1.0  # EQUIV: the interval lies inside ± this
    bar_pct: float | None = None  # least gain worth landing
    conditions: tuple[Condition, ...] = ()
    different_output: bool = False  # declared: the arms may produce different tokens

    @property
    def most_replaced(self) -> int:
        """Pairs that may be dropped and replaced before the machine is not fit to measure on."""
        return self.pairs // 4


@dataclass(frozen=True)
class Limits:
    """Guards on the machine. None of them looks at a timing."""

    foreign_memory_mb: float = 64.0
    idle_utilization_pct: float = 2.0
    sm_clock_pct: float = 3.0  # off the window's median
    host_cores: float = 1.0  # CPU time of other processes per second
    apart_s: float = 60.0  # between two runs of a pair, on top of the gap
    clock_step_s: float = 1.0
    suspended_s: float = 0.5


@dataclass(frozen=True)
class Plan:
    """A window. `order` has one label per pair; `warnings` are what a reader of the result must know."""

    a: Arm
    b: Arm
    order: tuple[str, ...]
    seed: int
    metric: str
    rule: Rule
    limits: Limits
    warmup: int = 1  # discarded runs of each arm whenever the window starts or goes on
    gap_s: float = 1.0  # before every run
    timeout_s: float = 600.0
    switch: str | None = None
    created: str = ""
    cwd: str = "."
    watched: dict[str, str] | None = None
    surface: dict[str, Any] | None = None
    launches: dict[str, Any] | None = None  # recorded launches of the arms, checked against the surface
    warnings: tuple[str, ...] = ()

    def arm(self, name: str) -> Arm:
        """The arm of a run: A' is A again."""
        return self.b if name == "B" else self.a


def shuffled(pairs: int, seed: int, null: bool = False) -> tuple[str, ...]:
    """Balanced order labels in random order; with `null` each also holds A', as often before A as after it."""
    draw = random.Random(seed)
    if null:
        forward = draw.sample(["AA'B", "ABA'", "A'AB"], 3)
        ab = [forward[i % 3] for i in range((pairs + 1) // 2)]
        ba = ["".join(reversed(ARMS.findall(label))) for label in ab]
    else:
        ab, ba = ["AB"] * ((pairs + 1) // 2), ["BA"] * ((pairs + 1) // 2)
    labels = ab + ba[: pairs // 2]
    draw.shuffle(labels)
    return tuple(labels)


def arm(text: str, env: Mapping[str, str]) -> Arm:
    """An arm from a command line; leading NAME=VALUE words are variables, as in a shell. Raises CensusError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CensusError(f"command {text!r} cannot be read ({error}); check its quotes") from None
    own = dict(env)
    while words and _ASSIGNED.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        own[name] = value
    if not words:
        raise CensusError(f"command {text!r} names no program; give one, e.g. \"minfer bench MODEL -p 0 -o json\"")
    if shell := _SHELL & set(words):
        raise CensusError(f"command {text!r} holds {sorted(shell)[0]!r}, and no shell runs it; write sh -c '...'")
    _refuse_profiler(words, text)
    return Arm(tuple(words), own)


def _refuse_profiler(words: Sequence[str], text: str) -> None:
    for word in " ".join(words).split():
        if Path(word).name in _PROFILERS:
            raise CensusError(f"command {text!r} runs under {Path(word).name}: a profiler changes the timings it "
                              "measures; time the bare command, and record a trace apart (--trace-a, --trace-b)")


def refuse_recorded(environ: Mapping[str, str]) -> None:
    """Raise CensusError where this process itself runs under nsys."""
    if "NSYS_PROFILING_SESSION_ID" in environ:
        raise CensusError(f"NSYS_PROFILING_SESSION_ID={environ['NSYS_PROFILING_SESSION_ID']!r}: this shell runs under "
                          "nsys, and nothing is timed under a profiler; start the window outside of it")


def variables(words: Sequence[str]) -> dict[str, str]:
    """The --env NAME=VALUE options. Raises CensusError for one that is neither."""
    for word in words:
        if not _ASSIGNED.fullmatch(word):
            raise CensusError(f"--env {word!r} is not allowed: give NAME=VALUE, which both arms get")
    return dict(word.split("=", 1) for word in words)


def arms(a: str | None, b: str | None, cmd: str | None, switch: str | None, env: Mapping[str, str]) -> tuple[Arm, Arm]:
    """Both arms, from --a and --b or from --cmd and --switch. Raises CensusError for any other mixture."""
    if a and b and not cmd and not switch:
        return arm(a, env), arm(b, env)
    if cmd and switch and not a and not b:
        if not re.fullmatch(r"[A-Za-z_]\w*", switch):
            raise CensusError(f"--switch {switch!r} is not allowed: give a variable's name; the arms set it to 0 and 1")
        one = arm(cmd, env)
        if switch in one.env:
            raise CensusError(f"--switch {switch}: the command or --env sets {switch}={one.env[switch]!r} too; "
                              "leave it to the window, which sets 0 in A and 1 in B")
        return Arm(one.command, one.env | {switch: "0"}), Arm(one.command, one.env | {switch: "1"})
    given = [name for name, value in (("--a", a), ("--b", b), ("--cmd", cmd), ("--switch", switch)) if value]
    raise CensusError(f"{' '.join(given) or 'no command'} does not make two arms: give --a CMD --b CMD, "
                      "or --cmd CMD --switch NAME")


def watched(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that both arms inherit and that a resumed window must find again."""
    return {k: environ[k] for k in sorted(environ) if _WATCHED.fullmatch(k) and not _SECRET.search(k)}


def one_sided(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Warnings about variables that differ in more than their value: unset in one arm, empty, or of unequal length."""
    out = []
    for name in sorted({*a, *b}):
        for arm_name, here, there in (("A", a, b), ("B", b, a)):
            if name not in here:
                out.append(f"{name} is set in one arm only and unset in {arm_name}: where the program reads its value, "
                           f"write it on both sides with equal length ({name}=0 and {name}=1)")
            elif not here[name]:
                out.append(f"{name} is empty in {arm_name}: many programs take an empty variable as set; write 0 or 1")
            elif name in there and len(here[name]) > len(there[name]) > 0:
                out.append(f"{name} is longer in {arm_name} ({here[name]!r}) than in the other arm ({there[name]!r}): "
                           "the size of the environment moves the stack")
    return out


def remarks(a: Arm, b: Arm, environ: Mapping[str, str], pairs: int) -> tuple[str, ...]:
    """What is doubtful about a plan and does not forbid it."""
    out = one_sided(a.env, b.env)
    if a.command == b.command and a.env == b.env:
        out.append("both arms are the same: an A/A window")
    for name in _ATTACHED:
        if environ.get(name) or a.env.get(name) or b.env.get(name):
            out.append(f"{name} is in the environment: a profiler or recorder may be attached to both arms")
    if pairs % 2:
        out.append(f"{pairs} pairs cannot be balanced: use an even number, or read the order-adjusted figure")
    if pairs < 6:
        out.append(f"{pairs} pairs can never show a difference at 0.05 (two-sided): 6 is the least, 10 the default")
    return tuple(out)


def now() -> str:
    """UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def as_data(plan: Plan) -> dict[str, Any]:
    """The plan as JSON holds it."""
    return asdict(plan)


def from_data(data: Mapping[str, Any], source: object) -> Plan:
    """A plan out of JSON. Raises CensusError where it does not have the fields of one."""
    try:
        a, b = (Arm(tuple(data[k]["command"]), dict(data[k]["env"])) for k in ("a", "b"))
        rule = Rule(**data["rule"] | {"conditions": tuple(Condition(**c) for c in data["rule"]["conditions"])})
        plain = {f.name for f in fields(Plan)} - {"a", "b", "rule", "limits"}
        rest: dict[str, Any] = {name: data[name] for name in plain}
        rest |= {"order": tuple(data["order"]), "warnings": tuple(data["warnings"])}
        return Plan(a, b, rule=rule, limits=Limits(**data["limits"]), **rest)
    except (KeyError, TypeError) as error:
        raise CensusError(f"{source}: is not a plan of this version ({error}); start a new window") from None


def check_environment(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Raise CensusError where a watched variable is not what it was when the plan was written."""
    then, here = plan.watched or {}, watched(environ)
    for name in sorted({*then, *here}):
        if then.get(name) != here.get(name):
            raise CensusError(f"{name} is {here.get(name)!r} now and was {then.get(name)!r} when the window was "
                              "planned; restore it, then resume")
