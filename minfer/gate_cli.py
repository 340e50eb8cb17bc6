"""`minfer gate ...`: the gates as commands. Exit code 0 when the gate passes, 1 when it does not, 2 for a mistake."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from minfer import gates
from minfer.cli_common import Device, Json, Kv, Model, emit, open_model
from minfer.devices import where
from minfer.errors import UserError
from minfer.surface import check_switch

if TYPE_CHECKING:
    from minfer.cuda.probes import Runner

app = typer.Typer(
    name="gate", rich_markup_mode=None, help="Checks of results that must pass before a speed counts."
)

Switch = Annotated[str, typer.Option("--switch", help="Compare this MINFER_NO_... switch at 0 with it at 1.")]
Tokens = Annotated[int, typer.Option("-n", "--tokens", min=1, help="Steps of each stream.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Seeded prompts.")]
Margin = Annotated[
    float, typer.Option(min=0, help="A step that differs where the best two are this near in log-probability is a tie.")
]


def _done(data: Mapping[str, Any], parts: Sequence[Any], as_json: bool) -> int:
    verdict = f"gate {data['gate']}: {'passed' if data['passed'] else 'NOT passed'}"
    emit(data, [*parts, verdict], as_json)
    return 0 if data["passed"] else 1


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for key in rows[0] if rows else ():
        table.add_column(str(key), justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*("-" if v is None else str(v) for v in row.values()))
    return table


def _streams(data: Mapping[str, Any], as_json: bool) -> int:
    return _done(data, [_table(data["streams"])], as_json)


def _sides(switch: str, device: str, kv: str | None) -> tuple[gates.Setting, gates.Setting]:
    check_switch(switch)
    place = where(device, kv)
    if place.device == "cpu":
        raise UserError(f"{switch} changes nothing on the cpu: a gate would compare a setting with itself")
    return gates.switch_settings(place, switch)


@app.command()
def probe(
    shape: Annotated[str, typer.Option(help="small, 7b or 14b: whose sizes.")] = "14b",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    device: Annotated[str, typer.Option(help="cuda, or emulated (with --shape small).")] = "cuda",
    as_json: Json = False,
) -> int:
    """Compare fused kernels with the chains they replace, byte for byte.

    Example: minfer gate probe --shape 14b
    """
    from minfer.cuda import probes

    if shape not in probes.SHAPES:
        raise UserError(f"--shape {shape!r} is not allowed: give one of {', '.join(probes.SHAPES)}")
    rows = probes.run_probes(_runner(device), probes.SHAPES[shape], seed)
    data = {"gate": "probe", "rows": rows, "passed": all(r["differ"] == 0 for r in rows)}
    return _done(data, [_table(rows)], as_json)


def _runner(device: str) -> "Runner":
    """What executes a probe's kernels."""
    if device == "cuda":
        from minfer.cuda.cupy_module import runner
    elif device == "emulated":
        from minfer.emulated.device import runner
    else:
        raise UserError(f"--device {device!r} is not allowed: give cuda or emulated")
    return runner()


@app.command()
def dump(
    model: Model,
    switch: Switch,
    tokens: Tokens = 4,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest logit difference allowed; 0: every byte.")] = 0.0,
    device: Device = "auto",
    kv: Kv = None,
    as_json: Json = False,
) -> int:
    """Compare logits and KV cache of two settings, byte for byte or within a tolerance.

    Example: minfer gate dump smollm2-135m --switch MINFER_NO_FUSE_QKV
    """
    data = gates.dump(open_model(model), _sides(switch, device, kv), tokens, tolerance)
    line = f"{data['identical']} of {data['compared']} arrays identical, largest logit difference "
    return _done(data, [f"{line}{data['max_logit_difference']:g}", _table(data["differing"])], as_json)


@app.command()
def greedy(
    model: Model,
    switch: Switch,
    tokens: Tokens = 256,
    seeds: Seeds = 5,
    margin: Margin = 0.0,
    device: Device = "auto",
    kv: Kv = None,
    as_json: Json = False,
) -> int:
    """Compare greedy token streams of two settings: 5 seeded prompts, 256 tokens each.

    The second setting is fed the first one's tokens, so that it goes on in the same place after a difference.

    Example: minfer gate greedy smollm2-135m --switch MINFER_NO_FUSE_QKV --tokens 32
    """
    sides = _sides(switch, device, kv)
    return _streams(gates.streams(open_model(model), sides, range(seeds), tokens, temp=0.0, margin=margin), as_json)


@app.command()
def sampled(
    model: Model,
    switch: Switch,
    tokens: Tokens = 64,
    seeds: Seeds = 5,
    margin: Margin = 0.0,
    temp: Annotated[float, typer.Option(min=0.01, help="Temperature.")] = 0.8,
    device: Device = "auto",
    kv: Kv = None,
    as_json: Json = False,
) -> int:
    """Compare sampled token streams of two settings: the same seeds draw the same tokens.

    Example: minfer gate sampled smollm2-135m --switch MINFER_NO_FUSE_QKV --tokens 16
    """
    sides = _sides(switch, device, kv)
    return _streams(gates.streams(open_model(model), sides, range(seeds), tokens, temp=temp, margin=margin), as_json)


@app.command()
def coverage(
    model: Model,
    log: Annotated[Path, typer.Option("--log", help="A launch log: MINFER_LAUNCH_LOG=FILE minfer bench ...")],
    device: Device = "auto",
    kv: Kv = None,
    as_json: Json = False,
) -> int:
    """Compare a recorded launch log with the plan, layer by layer.

    Example: minfer gate coverage smollm2-135m --log launches.jsonl
    """
    data = gates.coverage(open_model(model), where(device, kv), log)
    line = f"{data['covered']} of {data['compared']} groups (layers and the rest) covered in {data['steps']} steps"
    return _done(data, [line, *map(str, data["missing"])], as_json)
