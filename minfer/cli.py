"""The `minfer` command: pull a model, look at its plan, generate, time, convert."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from minfer import crossover_cli, gate_cli, switches
from minfer.cli_common import Device, Json, Kv, Model, emit, open_model
from minfer.errors import UserError
from minfer.progress import bar

app = typer.Typer(
    name="minfer",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A decode engine whose plan is data: what one step will launch is known before it runs.",
)

app.add_typer(gate_cli.app)
app.command()(crossover_cli.crossover)

# click's UsageError, wherever this version of typer keeps its click
USAGE_ERROR: Any = typer.BadParameter.__bases__[0]

Ctx = Annotated[int, typer.Option("--ctx", min=1, help="KV cache length in tokens.")]


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 2, an interrupt is 130."""
    try:
        switches.current()
        code = app(standalone_mode=False)
    except UserError as error:
        sys.exit(_say(str(error)))
    except USAGE_ERROR as error:
        sys.exit(_say(" ".join(error.format_message().split())))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str) -> int:
    print(f"minfer: {message}", file=sys.stderr)  # noqa: T201
    return 2


@app.callback(invoke_without_command=True)
def _commands(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A known name, or hf:ORG/REPO:FILE.gguf.")],
) -> None:
    """Fetch a model into the cache and print where it lies; a second call is instant.

    Example: minfer pull smollm2-135m
    """
    from minfer import pull as puller

    with bar(f"pulling {model}") as progress:
        path = puller.pull(model, progress)
    emit(None, [str(path)], False)


@app.command()
def plan(
    model: Model,
    depth: Annotated[int, typer.Option("-d", "--depth", min=0, help="Tokens already in the KV cache.")] = 0,
    bandwidth: Annotated[
        str | None, typer.Option(help="GB/s for the floor, or `measure`: read the device's memory now.")
    ] = None,
    device: Device = "auto",
    kv: Kv = None,
    as_json: Json = False,
) -> None:
    """Print what one decode step will launch and move, before anything runs. The header of a file is enough.

    Example: minfer plan smollm2-135m --bandwidth 30
    """
    from minfer.devices import where
    from minfer.engine import plan_step
    from minfer.show import plan_dict, plan_tables

    gguf, place = open_model(model), where(device, kv)
    data = plan_dict(gguf, plan_step(gguf, place, depth), _bandwidth(bandwidth, place.device))
    emit(data, plan_tables(data), as_json)


def _bandwidth(given: str | None, device: str) -> float | None:
    if given == "measure":
        from minfer.devices import BACKENDS

        return BACKENDS[device].bandwidth()
    try:
        value = None if given is None else float(given)
    except ValueError:
        value = 0.0
    if value is not None and not 0 < value < 1e6:
        raise UserError(f"--bandwidth {given} is not allowed: give GB/s, more than 0, or `measure`")
    return value


@app.command()
def surface(
    switch: Annotated[str, typer.Argument(metavar="SWITCH", help="A MINFER_NO_... switch.")],
    model: Model,
    depth: Annotated[int, typer.Option("-d", "--depth", min=0, help="Tokens already in the KV cache.")] = 0,
    device: Annotated[str, typer.Option(help="cuda or cpu; planning needs no GPU.")] = "cuda",
    kv: Kv = None,
    as_json: Json = False,
) -> None:
    """Print everything that a switch changes in the plan of a decode step: look before you measure.

    Example: minfer surface MINFER_NO_FUSE_QKV smollm2-135m
    """
    from minfer.devices import where
    from minfer.show import surface_tables
    from minfer.surface import surface as changes

    data = changes(open_model(model), where(device, kv), switch, depth)
    emit(data, surface_tables(data), as_json)


@app.command()
def graph(
    model: Model,
    tokens: Annotated[int, typer.Option("-n", "--tokens", min=1, help="Tokens in the pass; 1 is a decode step.")] = 1,
    dot: Annotated[bool, typer.Option("--dot", help="Print Graphviz DOT instead of one line a node.")] = False,
) -> None:
    """Print the op graph of one pass.

    Example: minfer graph smollm2-135m --dot | dot -Tsvg > graph.svg
    """
    from minfer.models import build_graph, load_hparams
    from minfer.show import graph_dot

    gguf = open_model(model)
    hp = load_hparams(gguf)
    g = build_graph(gguf, hp, tokens, hp.n_ctx_train, greedy=tokens == 1)
    lines = [f"{n.id:5} {n.op:10} {n.name:14} {n.rows}x{n.cols:<6} <- {list(n.inputs)}" for n in g.nodes]
    print(graph_dot(g) if dot else "\n".join(lines))  # noqa: T201


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="The text to continue, or `-` for standard input.")],
    n: Annotated[int, typer.Option("-n", "--n-predict", min=1, help="Tokens to generate at most.")] = 128,
    temp: Annotated[float, typer.Option(help="Temperature; 0 is greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 40,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this probability together.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the sampler; the same seed gives the same text.")] = 0,
    repeat_penalty: Annotated[float, typer.Option(help="Penalty on the last 64 tokens; 1 is none.")] = 1.0,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")] = False,
    ctx: Ctx = 4096,
    device: Device = "auto",
    kv: Kv = None,
    as_json: Json = False,
) -> None:
    """Continue a prompt, streaming the text.

    Example: minfer generate smollm2-135m -p "The capital of France is" --temp 0 -n 8
    """
    from minfer.devices import where
    from minfer.generate import Request, generate_text
    from minfer.sampler import Sampling

    how = Sampling(temp, top_k, top_p, repeat_penalty, seed)
    text = sys.stdin.read() if prompt == "-" else prompt
    result = generate_text(open_model(model), where(device, kv), Request(text, n, chat, ctx), how, stream=not as_json)
    if as_json:
        emit(result, [], True)


@app.command()
def bench(
    model: Model,
    n_prompt: Annotated[str, typer.Option("-p", "--n-prompt", help="Prompt lengths: 512 or 128,512; 0: none.")] = "512",
    n_gen: Annotated[str, typer.Option("-n", "--n-gen", help="Generation lengths; 0: none.")] = "128",
    n_depth: Annotated[str, typer.Option("-d", "--n-depth", help="Tokens already in the KV cache.")] = "0",
    reps: Annotated[int, typer.Option("-r", "--repetitions", min=1, help="Timed repetitions of each test.")] = 5,
    threads: Annotated[int | None, typer.Option("-t", "--threads", min=1, help="CPU threads; all by default.")] = None,
    device: Device = "auto",
    kv: Kv = None,
    no_warmup: Annotated[bool, typer.Option("--no-warmup", help="Skip the untimed first run of each test.")] = False,
    output: Annotated[str, typer.Option("-o", "--output", help="md, json, jsonl or csv.")] = "md",
    save: Annotated[Path | None, typer.Option(help="Write the rows to this file, not to standard output.")] = None,
) -> None:
    """Time prompt processing and token generation; options and fields are llama-bench's.

    Example: minfer bench smollm2-135m -p 0 -n 64 -r 3 -o json
    """
    from minfer.bench import run_bench
    from minfer.devices import where

    lengths = (("-p", n_prompt), ("-n", n_gen), ("-d", n_depth))
    sizes = [_lengths(*pair) for pair in lengths]
    text = run_bench(
        open_model(model), where(device, kv), sizes, reps=reps, threads=threads, warmup=not no_warmup, output=output
    )
    if save is None:
        print(text)  # noqa: T201
    else:
        save.write_text(text + "\n")


def _lengths(option: str, text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [-1]
    if min(values) < 0:
        raise UserError(f"{option} {text!r} is not allowed: give lengths of 0 or more, e.g. 128 or 128,512")
    return values


@app.command()
def dequantize(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A GGUF file, or a pulled model's name.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT when it exists.")] = False,
) -> None:
    """Copy a model with every tensor as F32: the reference that has no quantization in it.

    Example: minfer dequantize smollm2-135m smollm2-f32.gguf
    """
    from minfer import convert
    from minfer.pull import resolve

    with bar(f"writing {target.name}") as progress:
        convert.dequantize(resolve(str(source)), target, progress, force=force)


@app.command()
def synth(
    preset: Annotated[
        str,
        typer.Argument(
            metavar="PRESET",
            help="Whose shapes: nano-qwen2, tiny-qwen2, or qwen2-SIZE with a SIZE of 0.5b, 1.5b, 3b, 7b, 14b or 32b.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    vocab_from: Annotated[str | None, typer.Option(help="A model that lends its vocabulary and tokenizer.")] = None,
    header_only: Annotated[bool, typer.Option("--header-only", help="Leave the weights out: enough to plan.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT when it exists.")] = False,
) -> None:
    """Write a model with real shapes and quant types and random weights: what a kernel sees, without the download.

    Example: minfer synth qwen2-7b 7b.gguf --header-only
    """
    from minfer import synth as maker
    from minfer.pull import resolve

    lender = None if vocab_from is None else resolve(vocab_from)
    with bar(f"writing {target.name}") as progress:
        maker.synth(
            preset, target, seed=seed, vocab_from=lender, header_only=header_only, progress=progress, force=force
        )
