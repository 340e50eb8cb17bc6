"""Where every value of a graph lives: slots reused by liveness, in-place aliasing, persistent KV regions.

A slot is a scratch buffer that several nodes share one after the other. Regions (KV) live as long as the engine.
"""

from dataclasses import dataclass

from minfer.graph import Graph, Node
from minfer.ops import F32, OPS


@dataclass(frozen=True)
class Memory:
    slot: dict[int, int]  # node id -> slot; inputs and regions have none
    slot_elements: list[int]  # slot -> f32 elements
    in_place: frozenset[int]  # node ids whose output took over their input's slot
    region_elements: dict[str, int]  # region -> f32 elements (n_ctx · cols)

    @property
    def scratch_bytes(self) -> int:
        return F32 * sum(self.slot_elements)

    @property
    def kv_bytes(self) -> int:
        return F32 * sum(self.region_elements.values())


def plan_memory(graph: Graph) -> Memory:
    """Assign slots in execution order. A slot is free again after the last node that reads the value in it."""
    last_use = graph.last_use()
    slot: dict[int, int] = {}
    sizes: list[int] = []
    free: list[int] = []
    in_place: set[int] = set()
    regions = {n.region: n.elements for n in graph.nodes if n.region is not None}
    for node in graph.nodes:
        if node.op == "input":
            continue
        taken = _alias(graph, node, last_use, slot)
        if taken is not None:
            slot[node.id] = taken
            in_place.add(node.id)
        elif node.region is None:
            slot[node.id] = _take(free, sizes, node.elements)
        dying = {slot[i] for i in set(node.inputs) if i in slot and last_use[i] == node.id}
        free.extend(dying - {slot.get(node.id)})
        if node.id in slot and node.id not in last_use:  # nobody reads it
            free.append(slot[node.id])
    return Memory(slot, sizes, frozenset(in_place), regions)


def _alias(graph: Graph, node: Node, last_use: dict[int, int], slot: dict[int, int]) -> int | None:
    """The slot this node may overwrite: its in-place input's, when nobody needs that value later."""
    index = OPS[node.op].in_place
    if index is None:
        return None
    source = node.inputs[index]
    fits = source in slot and last_use[source] == node.id and graph.nodes[source].elements == node.elements
    read_twice = node.inputs.count(source) > 1
    return slot[source] if fits and not read_twice else None


def _take(free: list[int], sizes: list[int], need: int) -> int:
    """A free slot that is large enough (smallest first), else the largest free one grown, else a new one."""
    if free:
        best = min(free, key=lambda s: (sizes[s] < need, sizes[s] if sizes[s] >= need else -sizes[s]))
        free.remove(best)
        sizes[best] = max(sizes[best], need)
        return best
    sizes.append(need)
    return len(sizes) - 1
