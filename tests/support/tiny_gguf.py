"""Tiny GGUF files, written with the gguf package, and the weights that they hold."""

from pathlib import Path

import gguf
import numpy as np

VOCABULARY_SIZE = 262
HIDDEN_SIZE = 64
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16
CONTEXT_TOKENS = 128
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
END_OF_TURN_ID, END_OF_TEXT_ID = 260, 261


def write_gguf(
    path: Path,
    *,
    architecture: str = "qwen2",
    tied: bool = False,
    extra_tensors: tuple[str, ...] = (),
    matrix_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> dict[str, np.ndarray]:
    """Writes a model of two random layers and returns its tensors as stored, by GGUF name."""
    writer = gguf.GGUFWriter(path, architecture)
    _add_facts(writer)
    _add_tokenizer(writer)
    tensors = _tensors(architecture, tied)
    for name in extra_tensors:
        tensors[name] = np.ones(4, np.float32)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
            continue
        stored = gguf.quants.quantize(tensor, matrix_type)
        writer.add_tensor(name, stored, raw_dtype=matrix_type)
        tensors[name] = gguf.quants.dequantize(stored, matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _add_facts(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN_SIZE)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY_SIZE)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = [*_byte_symbols(), "he", "hel", "lo", "hello", "<|im_end|>", "<|endoftext|>"]
    kinds = [gguf.TokenType.NORMAL] * 260 + [gguf.TokenType.CONTROL] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "he l", "l o", "hel lo"])
    writer.add_eos_token_id(END_OF_TURN_ID)
    writer.add_bos_token_id(END_OF_TEXT_ID)
    writer.add_pad_token_id(END_OF_TEXT_ID)
    writer.add_chat_template(CHAT_TEMPLATE)


def _byte_symbols() -> list[str]:
    """The letters that byte-level tokenizers write bytes with."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def _tensors(architecture: str, tied: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.3, (rows, columns)).astype(np.float32)

    def vector(size: int, mean: float) -> np.ndarray:
        return random.normal(mean, 0.1, size).astype(np.float32)

    kv_size = NUM_KV_HEADS * HEAD_DIM
    tensors = {
        "token_embd.weight": matrix(VOCABULARY_SIZE, HIDDEN_SIZE),
        "output_norm.weight": vector(HIDDEN_SIZE, 1.0),
    }
    if not tied:
        tensors["output.weight"] = matrix(VOCABULARY_SIZE, HIDDEN_SIZE)
    for layer in ("blk.0", "blk.1"):
        tensors |= {
            f"{layer}.attn_norm.weight": vector(HIDDEN_SIZE, 1.0),
            f"{layer}.ffn_norm.weight": vector(HIDDEN_SIZE, 1.0),
            f"{layer}.attn_q.weight": matrix(HIDDEN_SIZE, HIDDEN_SIZE),
            f"{layer}.attn_k.weight": matrix(kv_size, HIDDEN_SIZE),
            f"{layer}.attn_v.weight": matrix(kv_size, HIDDEN_SIZE),
            f"{layer}.attn_output.weight": matrix(HIDDEN_SIZE, HIDDEN_SIZE),
            f"{layer}.ffn_gate.weight": matrix(96, HIDDEN_SIZE),
            f"{layer}.ffn_up.weight": matrix(96, HIDDEN_SIZE),
            f"{layer}.ffn_down.weight": matrix(HIDDEN_SIZE, 96),
        }
        if architecture == "qwen2":
            tensors |= {
                f"{layer}.attn_q.bias": vector(HIDDEN_SIZE, 0.0),
                f"{layer}.attn_k.bias": vector(kv_size, 0.0),
                f"{layer}.attn_v.bias": vector(kv_size, 0.0),
            }
    return tensors
