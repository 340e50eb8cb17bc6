"""From a .cu source to a shared library that runs on the CPU, kept under a hash of everything that went into it.

The text is preprocessed first, then three words are rewritten that macros cannot express in C++: `__global__`,
`extern __shared__` (a pointer to the launch's dynamic shared memory) and `__shared__` (a static array, since one block
runs at a time). Each kernel gets two entry points: `describe` (its parameters) and `call` (arguments by address).

`-fsanitize=thread` makes g++ report every load and store; the library is linked with our runtime instead of libtsan.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
GXX = shutil.which("g++")

RUNTIME_FLAGS = ("-std=c++17", "-O3", "-flto", "-fPIC", "-shared", "-ldl")
KERNEL_FLAGS = (
    "-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-w", "-fvisibility=hidden", "-fno-gnu-unique",
    "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0",
    "-fno-tree-sra",  # a vector stays one access, so its alignment can be checked
    "-fno-ipa-reference",  # a barrier may change every static array
    "-fno-tree-loop-im",  # a load stays where the source has it, so a guarded one is not seen unguarded
    "-ffp-contract=off",
    "-nodefaultlibs", "-lm", "-lc", "-lgcc",  # without libtsan
)  # fmt: skip


class BuildError(Exception):
    """g++ refused the source; the message is g++'s."""


@dataclass(frozen=True)
class Library:
    path: Path
    kernels: dict[str, tuple[str, ...]]  # name -> names of its parameters ("" where it has none)


def run_gxx(*arguments: str, stdin: str = "") -> str:
    if GXX is None:
        raise BuildError("g++ is not installed; the emulator compiles kernels with it")
    done = subprocess.run([GXX, *arguments], capture_output=True, text=True, input=stdin)
    if done.returncode:
        raise BuildError(done.stderr[:4000].replace("<stdin>", "kernel.cu"))
    return done.stdout


@cache
def folder() -> Path:
    path = Path(tempfile.gettempdir()) / f"cuda-on-cpu-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():  # code from here is loaded, so it must be ours
        raise BuildError(f"{path} belongs to another user; remove it or set TMPDIR")
    return path


def compiled(text: str, suffix: str, flags: tuple[str, ...], inputs: tuple[str, ...] = ()) -> Path:
    """The library for `text` (or for `inputs`, which `text` stands for), from the cache or from g++."""
    digest = hashlib.sha256("\0".join((gxx_version(), *flags, text)).encode()).hexdigest()[:24]
    library = folder() / f"{digest}.so"
    if not library.exists():
        scratch = folder() / f"{digest}-{os.getpid()}"
        source = scratch.with_suffix(suffix)
        source.write_text(text)
        built = scratch.with_suffix(".tmp")
        run_gxx("-o", str(built), *(inputs or (str(source),)), *flags)
        source.unlink()
        built.rename(library)  # whole or not at all, also with two test processes
    return library


@cache
def gxx_version() -> str:
    return run_gxx("--version")


@cache
def runtime() -> Path:
    sources = sorted((HERE / "runtime").iterdir())
    text = "".join(path.read_text() for path in sources)
    return compiled(text, ".txt", RUNTIME_FLAGS, tuple(str(path) for path in sources if path.suffix == ".cpp"))


INCLUDE_LINE = re.compile(r'\s*#include "([^"]+)"')


def pasted(path: Path, done: set[Path]) -> str:
    """A file with its own includes in place, each once, as minfer pastes them; #line keeps the line numbers."""
    done.add(path)
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE_LINE.match(line)
        other = path.parent / found[1] if found else path
        if not (found and other.exists()):
            lines.append(line)
        elif other not in done:
            lines += [pasted(other, done), f'#line {number + 1} "{path.name}"']
        else:
            lines.append("")
    return "\n".join(lines)


def preprocess(source: str | Path, options: tuple[str, ...]) -> str:
    """Only -I, -D and -U of the options mean anything here; NVRTC's others are ignored."""
    flags = [option for option in options if option[:2] in ("-I", "-D", "-U")]
    name = "kernel.cu" if isinstance(source, str) else source.name
    text = source if isinstance(source, str) else pasted(source, set())
    header = ("-include", "cuda_on_cpu.h", "-DCUDA_ON_CPU", "-D__CUDA_ARCH__=900")
    done = run_gxx("-E", "-x", "c++", "-std=c++17", f"-I{INCLUDE}", *header, *flags, "-", stdin=text)
    return done.replace('"<stdin>"', f'"{name}"')


QUALIFIERS = r"(?:__launch_bounds__\s*\([^()]*\)|static|inline|__attribute__\s*\(\(.*?\)\)|\s)*"
GLOBAL = re.compile(rf"__global__{QUALIFIERS}void\s{QUALIFIERS}(\w+)\s*\(")
DYNAMIC = re.compile(r"extern\s+__shared__\s+([^;]*?)(\w+)\s*\[\s*\]\s*;")


def closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one before `start`."""
    depth, at = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def parameter_names(text: str) -> tuple[str, ...]:
    pieces = [piece.strip() for piece in re.sub(r"<[^<>]*>", "", text).split(",") if piece.strip()]
    found = [re.search(r"[\s*&](\w+)(?:\s*\[\w*\])?$", piece) for piece in pieces]
    return tuple(m[1] if m and m[1] not in ("int", "float", "long", "unsigned", "char") else "" for m in found)


def kernels_of(text: str) -> dict[str, tuple[str, ...]]:
    kernels = {}
    for found in GLOBAL.finditer(text):
        end = closing(text, found.end())
        is_template = re.search(r"template\s*<[^{};]*>\s*$", text[max(0, found.start() - 400) : found.start()])
        if not is_template:
            kernels[found[1]] = parameter_names(text[found.end() : end])
    return kernels


def rewrite(text: str) -> str:
    text = DYNAMIC.sub(r"\1* const \2 = static_cast<\1*>(cuda_on_cpu_dynamic_shared());", text)
    text = re.sub(r"__launch_bounds__\s*\([^()]*\)", "", text)
    text = re.sub(r"\b(static\s+)?__shared__\b", "static", text)
    return re.sub(r"\b__global__\b", "__attribute__((noinline))", text)


ENTRY = """
extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void cuda_on_cpu_call_{0}(void** arguments) {{
    cuda_on_cpu::call({0}, arguments);
}}
extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) int cuda_on_cpu_describe_{0}(int* out) {{
    return cuda_on_cpu::describe({0}, out);
}}
"""


def build(source: str | Path, options: tuple[str, ...]) -> Library:
    text = preprocess(source, options)
    kernels = kernels_of(text)
    if not kernels:
        raise BuildError("the source has no __global__ function")
    whole = rewrite(text) + "".join(ENTRY.format(name) for name in kernels)
    return Library(compiled(whole, ".ii", KERNEL_FLAGS), kernels)
