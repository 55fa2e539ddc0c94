"""Conversations: every turn's prompt is all that was said, and new tokens behind it."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.offline_bench.driver import OfflineEngine
from antiphon_engine.offline_bench.shapes import SessionsShape
from antiphon_engine.offline_bench.workloads import (
    Figures,
    Sent,
    draw_prompts,
    note,
    percentile_ms,
)


@dataclass(slots=True)
class _Conversation:
    session: int
    history: list[int]
    users: list[NDArray[np.int32]]
    num_sent: int = 0


def measure_sessions(engine: OfflineEngine, shape: SessionsShape, *, seed: int = 8) -> Figures:
    """Measures conversations with system prompts of their own, which start one after the other."""
    conversations = _draw(shape, seed, engine.vocabulary_size)
    first_tokens_s: list[list[float]] = [[] for _ in range(shape.num_turns)]
    gaps_s: list[NDArray[np.float64]] = []
    sent: dict[int, Sent] = {}
    running: dict[int, _Conversation] = {}

    def send(conversation: _Conversation) -> None:
        conversation.history += conversation.users[conversation.num_sent].tolist()
        conversation.num_sent += 1
        prompt = np.array(conversation.history, np.int32)
        at_s = time.perf_counter()
        request_id = engine.add(prompt, shape.output_tokens, session=conversation.session)
        sent[request_id], running[request_id] = Sent(at_s), conversation

    engine.clear_times()
    start_s = time.perf_counter()
    waiting = list(reversed(conversations))
    while waiting or running:
        while waiting and _is_due(waiting[-1], shape, time.perf_counter() - start_s):
            send(waiting.pop())
        if not running:
            time.sleep(0.0005)
            continue
        brought = engine.step()
        if brought is None:
            continue
        note(brought, sent)
        for request_id, token_id in zip(brought.request_ids, brought.token_ids, strict=True):
            running[request_id].history.append(token_id)
        for request_id in brought.ended:
            conversation, ended = running.pop(request_id), sent.pop(request_id)
            first_tokens_s[conversation.num_sent - 1].append(ended.first_token_s)
            gaps_s.append(ended.gaps_s)
            if conversation.num_sent < shape.num_turns:
                send(conversation)
    wall_s = time.perf_counter() - start_s
    later_s = [seconds for turn in first_tokens_s[1:] for seconds in turn]
    all_gaps_s = np.concatenate(gaps_s)
    num_output = shape.num_sessions * shape.num_turns * shape.output_tokens
    return {
        "num_sessions": shape.num_sessions,
        "num_turns": shape.num_turns,
        "wall_s": round(wall_s, 3),
        "output_tokens_per_s": round(num_output / wall_s, 1),
        "first_token_ms_p50_by_turn": [percentile_ms(turn, 50) for turn in first_tokens_s],
        "first_token_ms_p99_by_turn": [percentile_ms(turn, 99) for turn in first_tokens_s],
        "later_turns_first_token_ms_p50": percentile_ms(later_s, 50),
        "later_turns_first_token_ms_p99": percentile_ms(later_s, 99),
        "gap_ms_p50": percentile_ms(all_gaps_s, 50),
        "gap_ms_p99": percentile_ms(all_gaps_s, 99),
        **engine.step_times(),
    }


def _draw(shape: SessionsShape, seed: int, vocabulary_size: int) -> list[_Conversation]:
    conversations = []
    for index in range(shape.num_sessions):
        lengths = [shape.system_tokens, *[shape.user_tokens] * shape.num_turns]
        system, *users = draw_prompts(seed * 1000 + index, lengths, vocabulary_size)
        conversations.append(_Conversation(index + 1, system.tolist(), users))
    return conversations


def _is_due(conversation: _Conversation, shape: SessionsShape, passed_s: float) -> bool:
    return passed_s >= (conversation.session - 1) * shape.stagger_s
