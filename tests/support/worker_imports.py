"""What most test processes come to import, and takes long. The zygote imports it once for all."""

import pytest  # noqa: F401
import transformers.models.llama.modeling_llama
import transformers.models.qwen2.modeling_qwen2
import transformers.models.qwen3.modeling_qwen3  # noqa: F401

import support.tiny_checkpoints  # noqa: F401
