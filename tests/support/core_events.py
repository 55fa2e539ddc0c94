"""A reader of KV events, as a router would be: it knows what it was told and nothing else."""

from dataclasses import dataclass, field

from antiphon_engine import _native

STORED, REMOVED, MOVED = 1, 2, 3
Place = tuple[int, int, int]
"""Parent's path hash, scope and tiers of a block."""


@dataclass
class EventReader:
    """Replays events from nothing, and from a snapshot where some were lost."""

    core: _native.EngineCore
    known: dict[int, Place] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)
    """What each scope's first blocks name as their parent."""
    sequence: int = 0
    num_events: int = 0
    num_losses: int = 0

    def read(self, limit: int) -> None:
        events, lost = self.core.read_kv_events(self.sequence, limit)
        if lost:
            self._resume()
            return
        for sequence, kind, path_hash, parent, scope, tiers, _priority in events:
            assert sequence == self.sequence + 1, "I10: an event is missing"
            self.sequence = sequence
            self.num_events += 1
            self._apply(kind, path_hash, (parent, scope, tiers))

    def catch_up(self) -> None:
        """Reads all there is and compares with the index."""
        last = -1
        while last != self.sequence:
            last = self.sequence
            self.read(64)
        sequence, blocks = self.core.kv_snapshot()
        assert sequence == self.sequence, "I10: the snapshot is of another moment"
        assert self.known == self._places(blocks), "I10: the replay is not what the index has"

    def _resume(self) -> None:
        self.num_losses += 1
        self.sequence, blocks = self.core.kv_snapshot()
        self.known = self._places(blocks)

    def _apply(self, kind: int, path_hash: int, place: Place) -> None:
        _, _, tiers = place
        if kind == REMOVED:
            assert path_hash in self.known, "I10: removed, and was not there"
            del self.known[path_hash]
            assert not any(path_hash == p for p, _, _ in self.known.values()), (
                "I10: removed before its children"
            )
            return
        assert self._is_known(place, self.known), "I10: stored below nothing"
        assert tiers, "I10: stored nowhere"
        assert (path_hash in self.known) == (kind == MOVED), "I10: stored twice, or moved from none"
        self.known[path_hash] = place

    def _is_known(self, place: Place, known: dict[int, Place]) -> bool:
        """Whether a block lies below one that is known, or at its scope's root."""
        parent, scope, _ = place
        return parent in known or self.roots.setdefault(scope, parent) == parent

    def _places(self, blocks: list[tuple[int, int, int, int, int]]) -> dict[int, Place]:
        places: dict[int, Place] = {}
        for path_hash, parent, scope, tiers, _priority in blocks:
            place = (parent, scope, tiers)
            assert self._is_known(place, places), "I10: a snapshot has a child before its parent"
            assert path_hash not in places, "I10: a snapshot names a block twice"
            places[path_hash] = place
        return places
