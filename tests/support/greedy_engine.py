"""The real core and executor with nothing around them: prompts in, likeliest tokens out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.engine_process import LoadedModel, make_core
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe

_NO_IDS = np.zeros(0, np.int32)


class GreedyEngine:
    """Runs requests to their ends, all at once. Steps are carried out one by one."""

    def __init__(
        self, checkpoint: Path, config: EngineConfig, model: LoadedModel | None = None
    ) -> None:
        """`model`: computes in place of the executor of a checkpoint."""
        model = model or describe(Executor(config, checkpoint))
        self.executor = model.executor
        self.core = make_core(config, model)
        self._scope = self.core.intern_scope(tenant="", cache_scope="", adapter="", weights="")
        self.reused_tokens: dict[int, int] = {}
        """Of the last `generate`, by index of the prompt."""
        self.first_logits: dict[int, Tensor] = {}
        """Likewise: those behind the prompt."""
        self.num_steps = 0
        """Of the last `generate`."""

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Returns `num_tokens` tokens for each prompt."""
        handles = [self._submit(prompt, num_tokens) for prompt in prompts]
        outputs: dict[int, list[int]] = {handle: [] for handle in handles}
        indices = {handle: index for index, handle in enumerate(handles)}
        self.reused_tokens, self.first_logits, self.num_steps = {}, {}, 0
        while step_id := self.core.plan(self.num_steps % 2):
            self._run(step_id, outputs, indices)
        self.core.check_invariants()
        return [outputs[handle] for handle in handles]

    def _submit(self, prompt: Sequence[int], num_tokens: int) -> int:
        return self.core.submit(
            np.array(prompt, np.int32),
            scope=self._scope,
            max_output_tokens=num_tokens,
            end_ids=_NO_IDS,
            stop_ids=_NO_IDS,
            seed=0,
        )

    def _run(self, step_id: int, outputs: dict[int, list[int]], indices: dict[int, int]) -> None:
        set_index = self.num_steps % 2
        step = self.executor.buffers(set_index)
        logits = self.executor.execute(set_index)
        self.executor.store_tokens(set_index, logits.argmax(-1).int())
        self.executor.wait(set_index)
        self.core.commit(step_id)
        self.num_steps += 1
        for row in range(step["header"][_native.HEADER_NUM_ROWS]):
            handle = int(step["handle"][row])
            if step["flags"][row] & _native.FLAG_FIRST:
                self.reused_tokens[indices[handle]] = int(step["reused_tokens"][row])
            if step["num_tokens"][row]:
                sample = step["sample_indptr"][row]
                self.first_logits.setdefault(indices[handle], logits[sample].clone())
                outputs[handle].append(int(step["tokens"][row, 0]))
