"""The native core's dumped state, checked from outside against what the ghost cache holds."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antiphon_engine import _native
from support.core_values import Chain, CoreShape, ModelRequest, chains_of
from support.ghost_kv import GhostKv


@dataclass
class CoreState:
    """One dump. Each check is named after the invariant that it proves."""

    clean: list[int]
    cached: list[int]
    references: dict[int, int]
    nodes: dict[int, dict[str, int]]
    requests: list[dict[str, object]]
    num_reserved: int

    @classmethod
    def of(cls, core: _native.EngineCore) -> "CoreState":
        dump = json.loads(core.dump_state())
        nodes = {node["node"]: node for node in dump["nodes"]}
        assert len(nodes) == len(dump["nodes"]), "I6: a node has two blocks"
        return cls(
            clean=dump["clean_blocks"],
            cached=dump["cached_blocks"],
            references=dict(dump["referenced_blocks"]),
            nodes=nodes,
            requests=dump["requests"],
            num_reserved=dump["num_blocks_reserved"],
        )

    @property
    def num_available(self) -> int:
        return len(self.clean) + len(self.cached)

    def check_blocks(self, shape: CoreShape) -> None:
        places = Counter([*self.clean, *self.cached, *self.references])
        everything = set(range(1, shape.num_blocks))
        assert sum(places.values()) == len(everything), "I1: blocks are lost or made"
        assert set(places) == everything, "I2: a block is nowhere"
        assert max(places.values()) == 1, "I2: a block is in two places"
        held = Counter(block for request in self.requests for block in request["blocks"])
        assert held == Counter(self.references), "I3: a count is not that of the chains"
        assert 0 not in places, "I4: scratch is given out"
        assert self.num_reserved <= self.num_available, "I15: more is promised than there is"
        needed = sum(
            request["num_blocks_needed"] - len(request["blocks"])
            for request in self.requests
            if request["slot"] != -1
        )
        assert self.num_reserved == needed, "I15: the promise is not the sum of what is to come"

    def check_index(self, ghost: GhostKv) -> None:
        for node in self.nodes.values():
            children = [n for n in self.nodes.values() if n["parent"] == node["node"]]
            assert node["num_children"] == len(children), "I6: a count of children is wrong"
            if node["parent"] != -1:
                assert node["parent"] in self.nodes, "I6: a parent is gone"
                assert self.nodes[node["parent"]]["scope"] == node["scope"], "I8: scopes mix"
                if self.references.get(node["block"]):
                    parent = self.nodes[node["parent"]]["block"]
                    assert self.references.get(parent), "I6: only a descendant is referenced"
        chains = Counter(ghost.block_chain(node["block"]) for node in self.nodes.values())
        assert not chains or max(chains.values()) == 1, "I6: one prefix has two nodes"

    def check_requests(self, live: Iterable[int], *, in_flight: bool) -> None:
        draining = {r["handle"] for r in self.requests if r["state"] == "draining"}
        assert {r["handle"] for r in self.requests} - draining == set(live), "I24: lost or left"
        assert in_flight or not draining, "I24: an ended request holds on to its blocks"
        for request in self.requests:
            settled, computed = request["num_settled"], request["num_computed"]
            assert 0 <= settled <= computed <= request["num_known"], "I21"

    def check_unshared(self, written: Iterable[int]) -> None:
        published = {node["block"] for node in self.nodes.values()}
        for block in written:
            assert self.references.get(block) == 1, "I12: a shared block is written"
            assert block not in published, "I12: a published block is written"

    def longest_match(self, ghost: GhostKv, request: tuple[int, Sequence[int], int]) -> list[int]:
        """Blocks of the longest published prefix of (scope, tokens, block size)."""
        scope, tokens, width = request
        published: dict[Chain, int] = {
            ghost.block_chain(node["block"]): node["block"]
            for node in self.nodes.values()
            if node["scope"] == scope
        }
        blocks: list[int] = []
        for chain in chains_of(scope, tokens)[width - 1 :: width]:
            if chain not in published:
                break
            blocks.append(published[chain])
        return blocks

    def fits(self, ghost: GhostKv, request: ModelRequest, shape: CoreShape) -> bool:
        """Whether GUARANTEED_NO_EVICT may admit the request: the rule in its plainest form."""
        prompt = request.ask.prompt[: len(request.ask.prompt) - 1]
        hits = self.longest_match(ghost, (request.ask.scope, prompt, shape.block_tokens))
        num_live = sum(1 for block in hits if self.references.get(block))
        needed = request.blocks_needed(shape) - num_live
        return needed <= self.num_available - self.num_reserved
