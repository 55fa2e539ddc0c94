"""An engine process from its start to its end: load, warm up, say Ready, run the loop."""

import gc
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import structlog
import torch

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.messages import (
    GenerationRequest,
    LoadFailed,
    LoadProgress,
    Ready,
    SamplingParams,
    StopParams,
)
from antiphon_engine.api.process import EngineStart
from antiphon_engine.arrivals import Arrivals
from antiphon_engine.cpu_topology import num_physical_cores
from antiphon_engine.cuda.device_sampler import DeviceSampler
from antiphon_engine.cuda.slot_draws import SlotDraws
from antiphon_engine.device import CPU, Device
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import mask_words
from antiphon_engine.grammar.filling import MaskFiller
from antiphon_engine.grammar.preparing import GuideMaker
from antiphon_engine.guidance import Guidance
from antiphon_engine.likeliest import MAX_TOP_LOGPROBS
from antiphon_engine.link import FrontEndGoneError, FrontEndLink
from antiphon_engine.loop import EngineLoop, EngineParts, LoopSettings
from antiphon_engine.requests import Requests
from antiphon_engine.run_ahead import RunAhead
from antiphon_engine.sampler import Sampler, StepSampler, sampling_flags
from antiphon_engine.step_executor import StepExecutor

_log = structlog.get_logger(__name__)

OnProgress: TypeAlias = Callable[[str, int, int], None]

_WARM_UP_PROMPT_TOKENS = 32
_WARM_UP_OUTPUT_TOKENS = 3
_LAST_WORDS_S = 1.0
_SWITCH_INTERVAL_S = 0.001
"""How long the engine's thread waits for the interpreter while others work: libraries' import and
what else a first grammar needs. It lets it go for each operation of a step, hundreds of times."""
_GUIDE_MAKERS = 2
"""So that one grammar that takes long to compile doesn't keep others waiting."""
_MAX_MASK_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model once it is loaded."""

    architecture: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    kernels: Mapping[str, str]
    """By part, both as the contract's Model names them."""
    vocabulary_size: int
    context_tokens: int
    num_blocks: int
    """With block 0, which is scratch."""
    num_host_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that can compute steps."""

    executor: StepExecutor
    facts: ModelFacts
    device: Device = CPU
    """Where the executor leaves its logits."""
    draws: SlotDraws | None = None
    """Draws tokens there; None: where that is the CPU."""


Load: TypeAlias = Callable[[EngineStart, OnProgress], LoadedModel]


def run_engine(start: EngineStart, link_socket: socket.socket, load: Load) -> int:
    """Serves one front end over `link_socket` until either ends; returns the exit status.

    Args:
        start: What to serve, and how.
        link_socket: Connected to the front end; closed at the end.
        load: Loads the model, and says how far it is. May raise StartupError, or what tells that
            there is no memory left.
    """
    link = FrontEndLink(link_socket)
    try:
        loop = _make_loop(start, link, load)
    except StartupError as error:
        return _fail(link, str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        return _fail(
            link,
            "memory ran out while the model was loaded, though there seemed to be enough: lower "
            f"engine.kv_cache_bytes, or end what else takes some ({error or 'no size is told'})",
        )
    except FrontEndGoneError as error:
        _log.warning("front end gone while loading", cause=str(error))
        return 0
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    # A full collection stops every stream; the loop asks for one when nothing runs.
    gc.set_threshold(10_000, 50, 1 << 30)
    loop.run()
    link.close()
    return 0


def _fail(link: FrontEndLink, problem: str) -> int:
    link.send(LoadFailed(message=problem))
    link.drain(_LAST_WORDS_S)
    return 1


def _make_loop(start: EngineStart, link: FrontEndLink, load: Load) -> EngineLoop:
    config = start.config

    def on_progress(stage: str, done: int, total: int) -> None:
        link.send(LoadProgress(stage=stage, done=done, total=total))

    model = load(start, on_progress)
    on_progress("warm-up", 0, 1)
    warm_up(config, model)
    on_progress("warm-up", 1, 1)
    parts = make_parts(start, model)
    loop = EngineLoop(parts, link, loop_settings(config))
    link.send(_ready(config, model.facts))
    parts.arrivals.warm_up()
    return loop


def make_parts(start: EngineStart, model: LoadedModel) -> EngineParts:
    """Returns what a loop drives, all fresh. Raises StartupError."""
    config, facts = start.config, model.facts
    core = make_core(config, model)
    requests = Requests(
        core,
        vocabulary_size=facts.vocabulary_size,
        weights=start.checkpoint,
        num_reserved=config.max_requests,
    )
    guide_maker = GuideMaker(
        partial(
            Backends.load,
            Path(start.checkpoint),
            vocabulary_size=facts.vocabulary_size,
            large_bytes=config.grammar_cache_bytes,
        ),
        cache_bytes=config.grammar_cache_bytes,
        num_threads=_GUIDE_MAKERS,
        step_limit_s=config.grammar_step_limit_ms / 1000,
    )
    filler = MaskFiller(
        num_rows=config.max_rows,
        num_words=mask_words(facts.vocabulary_size),
        num_threads=min(_MAX_MASK_THREADS, num_physical_cores()),
        step_limit_s=config.grammar_step_limit_ms / 1000,
    )
    return EngineParts(
        core=core,
        executor=model.executor,
        sampler=_make_sampler(config, model),
        requests=requests,
        arrivals=Arrivals(requests, guide_maker),
        guidance=Guidance(requests, filler),
        run_ahead=RunAhead(config.num_steps_ahead, adapts=config.run_ahead < 0),
    )


def make_core(config: EngineConfig, model: LoadedModel) -> _native.EngineCore:
    """Returns a core that plans into the executor's buffers. Raises StartupError."""
    try:
        core = _native.EngineCore(
            num_blocks=model.facts.num_blocks,
            block_tokens=config.block_tokens,
            max_rows=config.max_rows,
            max_step_tokens=config.max_step_tokens,
            max_context_tokens=model.facts.context_tokens,
            max_requests=config.max_requests,
            chunk_tokens=config.chunk_tokens,
            num_buffer_sets=config.num_buffer_sets,
            prefix_reuse=config.prefix_reuse,
            partial_reuse=config.partial_reuse,
            prefix_deferral=config.prefix_deferral,
            capacity_policy=config.capacity_policy,
            chunk_policy=config.chunk_policy,
            watermark_blocks=config.watermark_blocks,
            cooldown_steps=config.cooldown_steps,
            bypass_requests=config.bypass_requests,
            bypass_steps=config.bypass_steps,
            run_ahead=config.num_steps_ahead,
            num_host_blocks=model.facts.num_host_blocks,
            onload_cost_tokens=config.onload_cost_tokens,
            onload_block_cost_tokens=config.onload_block_cost_tokens,
            pause_every=config.fault_pause_every,
            miss_every=config.fault_miss_every,
            fail_host_allocation_every=config.fault_fail_host_allocation_every,
            max_admissions=config.fault_max_admissions,
        )
    except ValueError as error:
        raise StartupError(f"The engine's settings don't go together: {error}.") from error
    for set_index in range(config.num_buffer_sets):
        core.register_buffers(set_index, **model.executor.buffers(set_index))
    return core


def loop_settings(config: EngineConfig) -> LoopSettings:
    """Returns what of the settings is the loop's."""
    return LoopSettings(
        num_buffer_sets=config.num_buffer_sets,
        delay_commit_s=config.fault_delay_commit_ms / 1000,
    )


def _make_sampler(config: EngineConfig, model: LoadedModel) -> StepSampler:
    if model.draws is not None:
        return DeviceSampler(model.draws, model.device)
    return Sampler(num_slots=config.max_rows, vocabulary_size=model.facts.vocabulary_size)


def warm_up(config: EngineConfig, model: LoadedModel) -> None:
    """Runs a request through a core of its own, so that the first real one finds all in place.

    The core that serves starts with clean counters and an empty cache.
    """
    unfaulty = replace(config, fault_pause_every=0, fault_miss_every=0)
    core, executor = make_core(unfaulty, model), model.executor
    sampler = _make_sampler(config, model)
    num_prompt_tokens = max(1, min(_WARM_UP_PROMPT_TOKENS, model.facts.context_tokens // 2))
    prompt = np.zeros(num_prompt_tokens, np.int32)
    request = GenerationRequest(
        prompt=prompt.tobytes(),
        sampling=SamplingParams(seed=0, top_k=20, top_p=0.9, repetition_penalty=1.1),
        stop=StopParams(max_output_tokens=_WARM_UP_OUTPUT_TOKENS),
    )
    no_ids = np.zeros(0, np.int32)
    core.submit(
        prompt,
        scope=core.intern_scope(tenant="", cache_scope="", adapter="", weights=""),
        max_output_tokens=_WARM_UP_OUTPUT_TOKENS,
        end_ids=no_ids,
        stop_ids=no_ids,
        seed=0,
        flags=sampling_flags(request),
    )
    has_numbers = True
    while step_id := core.plan(0):
        plan = executor.buffers(0)
        for row in plan["slot_init"][: plan["header"][_native.HEADER_NUM_SLOT_INITS]]:
            sampler.assign_slot(int(plan["slot"][row]), request, prompt=prompt, output=no_ids)
        logits = executor.execute(0)
        has_numbers = has_numbers and not bool(logits.isnan().any())
        executor.store_tokens(0, sampler.sample(logits, plan).tokens)
        executor.wait(0)
        core.commit(step_id)
    if not has_numbers:
        _log.warning("the model's logits are no numbers: its weights are damaged; fetch them again")


def _ready(config: EngineConfig, facts: ModelFacts) -> Ready:
    # A prompt gets a block of a step beside the running requests' tokens, or it would never start.
    max_rows = min(config.max_rows, config.max_step_tokens - config.block_tokens + 1)
    if max_rows < config.max_rows:
        _log.warning(
            "engine.max_step_tokens limits the requests that run at once",
            max_step_tokens=config.max_step_tokens,
            max_rows=config.max_rows,
            requests_at_once=max_rows,
            step_tokens_for_all=config.max_rows + config.block_tokens - 1,
        )
    return Ready(
        architecture=facts.architecture,
        device=config.device,
        dtype=facts.dtype,
        quantization=facts.quantization,
        kv_cache_dtype=facts.kv_cache_dtype,
        kernels=dict(facts.kernels),
        vocabulary_size=facts.vocabulary_size,
        context_tokens=facts.context_tokens,
        kv_cache_tokens=(facts.num_blocks - 1) * config.block_tokens,
        block_tokens=config.block_tokens,
        max_rows=max_rows,
        max_step_tokens=config.max_step_tokens,
        max_top_logprobs=min(MAX_TOP_LOGPROBS, facts.vocabulary_size),
    )
