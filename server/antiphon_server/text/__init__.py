"""Text and token ids: tokenizer, chat template, incremental decoding, stop strings."""
