"""The native core's dumped state, checked from outside."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from antiphon_engine import _native
from support.core_values import Chain, CoreShape, History
from support.ghost_kv import GhostKv


@dataclass(frozen=True, kw_only=True)
class Node:
    """A block of the prefix tree; `block` and `host_block` are -1 where it isn't there."""

    node: int
    uid: int
    block: int
    host_block: int
    scope: int
    parent: int
    num_children: int
    num_tokens: int
    level: int
    last_use: int

    @property
    def tier_block(self) -> tuple[int, int]:
        """Where its content can be read."""
        if self.block != -1:
            return _native.TIER_DEVICE, self.block
        return _native.TIER_HOST, self.host_block


@dataclass(frozen=True, kw_only=True)
class DumpedRequest:
    handle: int
    state: str
    epoch: int
    slot: int
    blocks: tuple[int, ...]
    num_known: int
    num_computed: int
    num_settled: int
    num_promised: int


@dataclass
class CoreState:
    """One dump. Each check is named after the invariant that it proves."""

    clean: list[int]
    cached: list[int]
    references: dict[int, int]
    host_clean: list[int]
    host_cached: list[int]
    host_references: dict[int, int]
    host_held: Counter[int]
    nodes: dict[int, Node]
    requests: dict[int, DumpedRequest]
    held: Counter[int]
    """Device blocks that steps in flight hold, beside those of chains."""
    num_reserved: int
    block_tokens: int

    @classmethod
    def of(cls, core: _native.EngineCore, block_tokens: int) -> "CoreState":
        dump = json.loads(core.dump_state())
        nodes = [_node(entry) for entry in dump["nodes"]]
        requests = [_request(entry) for entry in dump["requests"]]
        assert len({node.node for node in nodes}) == len(nodes), "I6: a node is there twice"
        device, host = dump["device"], dump["host"]
        return cls(
            clean=device["clean"],
            cached=device["cached"],
            references=dict(device["referenced"]),
            held=Counter(dump["held_blocks"]),
            host_clean=host["clean"],
            host_cached=host["cached"],
            host_references=dict(host["referenced"]),
            host_held=Counter(dump["held_host_blocks"]),
            nodes={node.node: node for node in nodes},
            requests={request.handle: request for request in requests},
            num_reserved=dump["num_blocks_reserved"],
            block_tokens=block_tokens,
        )

    @property
    def num_available(self) -> int:
        return len(self.clean) + len(self.cached)

    def in_state(self, *states: str) -> set[int]:
        return {r.handle for r in self.requests.values() if r.state in states}

    def children(self, parent: int, scope: int) -> Iterator[Node]:
        for node in self.nodes.values():
            if node.parent == parent and node.scope == scope:
                yield node

    @cached_property
    def chain_counts(self) -> Counter[int]:
        """How many requests name each block."""
        return Counter(block for request in self.requests.values() for block in request.blocks)

    @cached_property
    def published(self) -> dict[int, Node]:
        """Nodes by their device block."""
        return {node.block: node for node in self.nodes.values() if node.block != -1}

    def check_blocks(self, shape: CoreShape) -> None:
        places = Counter([*self.clean, *self.cached, *self.references])
        everything = set(range(1, shape.num_blocks))
        assert 0 not in places, "I4: scratch is given out"
        assert sum(places.values()) == len(everything), "I1: blocks are lost or made"
        assert set(places) == everything, "I2: a block is nowhere"
        assert max(places.values()) == 1, "I2: a block is in two places"
        assert self.chain_counts + self.held == Counter(self.references), (
            "I3: a count is not that of the chains and holds"
        )
        host = Counter([*self.host_clean, *self.host_cached, *self.host_references])
        assert host == Counter(range(1, shape.num_host_blocks + 1)), "I1, I2: host blocks"
        assert self.host_held == Counter(self.host_references), "I3: holds of host blocks"
        assert set(self.cached) <= set(self.published), "I2: a cached block has no node"
        assert not set(self.clean) & set(self.published), "I2: a clean block has a node"

    def check_promise(self) -> None:
        """What GUARANTEED_NO_EVICT has promised."""
        assert self.num_reserved <= self.num_available, "I15: more is promised than there is"
        needed = sum(
            max(request.num_promised - len(request.blocks), 0) for request in self.requests.values()
        )
        assert self.num_reserved == needed, "I15: the promise is not the sum of what is to come"

    def check_tree(self) -> None:
        num_children = Counter(node.parent for node in self.nodes.values())
        for node in self.nodes.values():
            assert node.num_children == num_children[node.node], "I6: a count of children is wrong"
            assert node.block != -1 or node.host_block != -1, "I6: a node is nowhere"
            whole = node.num_tokens == self.block_tokens
            assert whole or not node.num_children, "I7: a block that is not full has children"
            assert 1 <= node.num_tokens <= self.block_tokens, "I7: a node of no tokens"
            if node.parent != -1:
                self._check_parent(node, self.nodes.get(node.parent))

    def check_contents(self, ghost: GhostKv, *, skip_host: set[int]) -> None:
        """What was published is what lies there. All planned steps must have been executed."""
        chains: Counter[Chain] = Counter()
        for node in self.nodes.values():
            tier, block = node.tier_block
            chains[ghost.chain(tier, block, node.num_tokens)] += 1
            if node.block != -1 and node.host_block not in skip_host | {-1}:
                host = ghost.cells(_native.TIER_HOST, node.host_block)[: node.num_tokens]
                device = ghost.cells(_native.TIER_DEVICE, node.block)[: node.num_tokens]
                assert host == device, "I7: a block differs between its tiers"
        assert not chains or max(chains.values()) == 1, "I6: one prefix has two nodes"

    def check_requests(self, live: Iterable[int], *, in_flight: bool) -> None:
        draining = self.in_state("draining")
        assert set(self.requests) - draining == set(live), "I24: a request is lost or left"
        assert in_flight or not draining, "I24: an ended request holds on to its blocks"
        for request in self.requests.values():
            assert 0 <= request.num_settled <= request.num_computed, "I21"
            if request.state in ("queued", "wait_leader", "paused", "held"):
                assert not request.blocks, "I13: a request that waits or rests has blocks"

    def match(self, ghost: GhostKv, history: History) -> "NaiveMatch":
        """The longest published prefix of a history, by comparing cells."""
        width, path, parent = self.block_tokens, list[Node](), -1
        while True:
            start = len(path) * width
            best, best_tokens = None, 0
            for node in self.children(parent, history.scope):
                num_equal = self._num_equal(ghost, node, history.chains[start : start + width])
                if num_equal > best_tokens:
                    best, best_tokens = node, num_equal
            if best is None or best_tokens < width or best.num_tokens < width:
                return NaiveMatch(path, best_tokens, width)
            path.append(best)
            parent = best.node

    def _num_equal(self, ghost: GhostKv, node: Node, chains: Sequence[Chain]) -> int:
        tier, block = node.tier_block
        cells = ghost.cells(tier, block)[: node.num_tokens]
        num_equal = 0
        for cell, chain in zip(cells, chains, strict=False):
            if cell != chain:
                break
            num_equal += 1
        return num_equal

    def _check_parent(self, node: Node, parent: Node | None) -> None:
        assert parent is not None, "I6: a parent is gone"
        assert parent.scope == node.scope, "I8: scopes mix"
        if node.block != -1:
            assert parent.block != -1, "I6: only a descendant is on the device"
            if self.references.get(node.block) and self.chain_counts[node.block]:
                assert self.references.get(parent.block), "I6: only a descendant is referenced"


@dataclass(frozen=True)
class NaiveMatch:
    """A path from the root, and how many tokens of a block below it are equal."""

    path: list[Node]
    partial_tokens: int
    block_tokens: int

    @property
    def num_device(self) -> int:
        """Leading blocks that are on the device."""
        missing = [index for index, node in enumerate(self.path) if node.block == -1]
        return missing[0] if missing else len(self.path)

    @property
    def device_tokens(self) -> int:
        return self.num_device * self.block_tokens

    @property
    def whole_tokens(self) -> int:
        return len(self.path) * self.block_tokens

    @property
    def all_tokens(self) -> int:
        return self.whole_tokens + self.partial_tokens


def _node(entry: dict[str, int]) -> Node:
    return Node(
        node=entry["node"],
        uid=entry["uid"],
        block=entry["block"],
        host_block=entry["host_block"],
        scope=entry["scope"],
        parent=entry["parent"],
        num_children=entry["num_children"],
        num_tokens=entry["num_tokens"],
        level=entry.get("level", 0),
        last_use=entry.get("last_use", 0),
    )


def _request(entry: dict[str, object]) -> DumpedRequest:
    return DumpedRequest(
        handle=entry["handle"],
        state=entry["state"],
        epoch=entry["epoch"],
        slot=entry["slot"],
        blocks=tuple(entry["blocks"]),
        num_known=entry["num_known"],
        num_computed=entry["num_computed"],
        num_settled=entry["num_settled"],
        num_promised=entry["blocks_promised"],
    )
