"""What `minfer plan` and `minfer graph` print: the plan as JSON-able data, its tables, the graph as DOT."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from minfer.bench import model_type
from minfer.gguf import GGUF, GGUFError, Tensor
from minfer.graph import Graph, role
from minfer.plan import Plan, launch_dict


def plan_dict(gguf: GGUF, plan: Plan, bandwidth: float | None) -> dict[str, Any]:
    """Everything `minfer plan --json` says. `bandwidth` in GB/s gives the floors, without it they are null."""
    totals = plan.totals()
    moved = totals["bytes_read"] + totals["bytes_written"]
    return {
        "model": str(gguf.path),
        "model_type": model_type(gguf),
        "data_missing": _data_missing(gguf),
        "backend": plan.backend,
        "n_layer": len({x.layer for x in plan.launches if x.layer is not None}),
        "n_tokens": plan.n_tokens,
        "n_kv": plan.n_kv,
        "totals": totals | {"bytes_moved": moved},
        "memory": {"scratch_bytes": plan.memory.scratch_bytes, "kv_bytes": plan.memory.kv_bytes},
        "bandwidth_gbs": bandwidth,
        "floor_ms": {
            "weights_as_stored": _floor_ms(totals["weight_bytes"], bandwidth),
            "as_this_backend_moves": _floor_ms(moved, bandwidth),
        },
        "weights": weight_rows(gguf.tensors),
        "kernels": kernel_rows(plan),
        "launches": [launch_dict(x) for x in plan.launches],
    }


def _data_missing(gguf: GGUF) -> str | None:
    """Why the file can be planned but not run; None when its tensors' data is all there."""
    try:
        gguf.require_data()
    except GGUFError as error:
        return str(error)
    return None


def _floor_ms(nbytes: int, bandwidth: float | None) -> float | None:
    return None if bandwidth is None else nbytes / bandwidth / 1e6


def weight_rows(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Matrices by (role, type, od, id), with how many layers have them and which; file order."""
    rows: dict[tuple[str, str, int, int], dict[str, Any]] = {}
    for t in tensors.values():
        if len(t.shape) < 2:
            continue
        key = (role(t.name), t.type, t.rows, t.shape[0])
        empty = dict(zip(("role", "type", "od", "id"), key, strict=True)) | {"layers": 0, "bytes": 0, "layer_ids": []}
        row = rows.setdefault(key, empty)
        row["bytes"] += t.nbytes
        if t.name.startswith("blk."):
            row["layers"] += 1
            row["layer_ids"].append(int(t.name.split(".")[1]))
    return list(rows.values())


def kernel_rows(plan: Plan) -> list[dict[str, Any]]:
    """Per kernel: launches and the bytes and flops of all of them, most bytes first."""
    rows: dict[str, dict[str, Any]] = {}
    for x in plan.launches:
        row = rows.setdefault(x.kernel, {"kernel": x.kernel, "launches": 0, "bytes_moved": 0, "flops": 0})
        row["launches"] += 1
        row["bytes_moved"] += x.bytes_read + x.bytes_written
        row["flops"] += x.flops
    return sorted(rows.values(), key=lambda r: -r["bytes_moved"])


def plan_tables(data: Mapping[str, Any]) -> list[Table | str]:
    """The plan for reading: one headline, the weights, the kernels, the totals."""
    totals, floors = data["totals"], data["floor_ms"]
    headline = (
        f"{data['model_type']}: {totals['launches']} launches a step on {data['backend']}, {data['n_layer']} layers, "
        f"{data['n_tokens']} token(s), {data['n_kv']} KV rows read"
    )
    weights = _table("weights as stored", ("role", "type", "od", "id", "layers", "bytes", "layer_ids"))
    for row in data["weights"]:
        ids = ranges(row["layer_ids"])
        sizes = (str(row["od"]), str(row["id"]), str(row["layers"] or "-"), f"{row['bytes']:,}")
        weights.add_row(row["role"], row["type"], *sizes, ids or "-")
    kernels = _table("launches", ("kernel", "launches", "bytes_moved", "flops"))
    for row in [*data["kernels"], {"kernel": "total", **totals}]:
        cells = (row["launches"], row["bytes_moved"], row["flops"])
        kernels.add_row(row["kernel"], *(f"{c:,}" for c in cells))
    return [headline, weights, kernels, *_totals_lines(totals, floors, data["bandwidth_gbs"])]


def surface_tables(data: Mapping[str, Any]) -> list[Table | str]:
    """The surface for reading: launches, kernels, what moves, where."""
    count = data["launches_per_step"]
    head = f"{data['switch']}: {count['off']} launches a step at 0, {count['on']} at 1 ({count['delta']:+d})"
    if not data["rows"] and not data["geometry"]:
        return [head, "the plan of this model is the same either way"]
    kernels = _table("launches", ("kernel", "at 0", "at 1", "change"))
    for row in data["rows"]:
        kernels.add_row(row["kernel"], str(row["off"]), str(row["on"]), f"{row['on'] - row['off']:+d}")
    shapes = [f"geometry of {g['kernel']}: {g['off']} at 0, {g['on']} at 1" for g in data["geometry"]]
    differ = {name: v for name, v in data["totals"].items() if v["off"] != v["on"]}
    moved = [f"{name}: {v['off']:,} at 0, {v['on']:,} at 1" for name, v in differ.items()]
    table = [kernels] if data["rows"] else []
    return [head, *table, *shapes, *moved, f"layers whose kernels change: {ranges(data['layers']) or 'none'}"]


def _totals_lines(totals: Mapping[str, int], floors: Mapping[str, float | None], bandwidth: float | None) -> list[str]:
    lines = [
        f"weight bytes read per step, as stored: {totals['weight_bytes']:,}",
        f"bytes moved per step by this backend:  {totals['bytes_moved']:,}",
    ]
    if bandwidth is None:
        return [*lines, "floor: not shown; give --bandwidth GB/s"]
    stored, moved = floors["weights_as_stored"], floors["as_this_backend_moves"]
    return [*lines, f"floor at {bandwidth:g} GB/s: weights as stored {stored:.3f} ms, this backend {moved:.3f} ms"]


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        left = column in ("role", "type", "kernel", "layer_ids")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def graph_dot(graph: Graph) -> str:
    """The graph in Graphviz' DOT: one box per node, clustered by layer."""
    lines = ["digraph decode {", '  rankdir="TB"; node [shape=box, fontname="monospace"];']
    layers = sorted({n.layer for n in graph.nodes if n.layer is not None})
    for layer in [None, *layers]:
        members = [f'n{n.id} [label="{n.op}\\n{n.name} {n.rows}x{n.cols}"];' for n in graph.nodes if n.layer == layer]
        inside, head = " ".join(members), f'subgraph cluster_{layer} {{ label="layer {layer}"; '
        lines.append(f"  {inside}" if layer is None else f"  {head}{inside} }}")
    lines += [f"  n{i} -> n{n.id};" for n in graph.nodes for i in n.inputs]
    return "\n".join([*lines, "}"])
