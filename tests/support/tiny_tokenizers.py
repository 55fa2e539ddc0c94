"""Small tokenizers, trained on a few lines of English, as Hugging Face directories."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

VOCABULARY_SIZE = 1000

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
OTHER_ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}
{{- tool | tojson }}
{{- '\\n' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + call.function.arguments | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_LINES = (
    "The harbour lay quiet while the morning ferry turned towards the lower pier.",
    "A user asks the assistant for the weather, and the assistant calls a tool to find out.",
    "one two three four five six seven eight nine ten eleven twelve hello hello world",
    "Please write down every number that you see, then say which of them is the largest.",
    'If a < b and b < c then a < c; that is what {"order": [1, 2, 3]} means, isn\'t it?',
    "She sells sea shells; he counts them twice and writes the total in a small grey book.",
    "What is the capital of the country where the river ends, and who lives there today?",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 2))  # prints four",
    "system user assistant tool name arguments result content role message session turn",
    "Carpenters measured every wooden beam before raising the framework above the workshop.",
    "During autumn, migrating geese cross our valley in enormous and surprisingly noisy groups.",
    "The librarian quietly catalogued maps, diaries, recipes, photographs and old newspapers.",
    "Fresh bread, salted butter, ripe tomatoes and strong coffee make a reasonable breakfast.",
    "Engineers inspected both bridges yesterday; neither showed cracks, rust or loose bolts.",
    "Her grandmother knitted thick woollen gloves for children throughout the village school.",
    "Thunder rolled across distant mountains while shepherds hurried their flocks downhill.",
    "Museum visitors often overlook the smallest painting, which hangs beside the staircase.",
    "Gardeners plant onions, carrots and beans early, before frost leaves northern fields.",
    "Three musicians rehearsed a difficult quartet without their cellist until midnight.",
    "Astronomers recorded faint signals, compared results and published careful conclusions.",
    "Bicycles leaned against the painted fence outside a crowded railway station entrance.",
    "Nobody had expected the lighthouse keeper to answer the letters within a single week.",
)


def save_byte_level_tokenizer(
    directory: Path,
    *,
    chat_template: str | None = CHAT_TEMPLATE,
    more_lines: Sequence[str] = (),
) -> Path:
    """Writes a byte-level BPE tokenizer, in the manner of GPT-2 and Qwen; returns `directory`.

    Args:
        directory: Is made.
        chat_template: None: it has none.
        more_lines: To be trained on beside the lines of English; words that come often in them
            become tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(OTHER_ADDED_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*_LINES, *more_lines], trainer)
    return _save(tokenizer, directory, chat_template=chat_template, end_token="<|im_end|>")


def save_byte_fallback_tokenizer(
    directory: Path, *, chat_template: str | None = CHAT_TEMPLATE
) -> Path:
    """Writes a BPE tokenizer with byte fallback and a dummy leading blank, as Llama 2 has it."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _train_with_byte_tokens(tokenizer, directory, chat_template)


def save_metaspace_tokenizer(directory: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Writes a BPE tokenizer with byte fallback whose blank comes before the first word only."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace("\u2581", prepend_scheme="first")]
    )
    return _train_with_byte_tokens(tokenizer, directory, chat_template)


def _train_with_byte_tokens(
    tokenizer: Tokenizer, directory: Path, chat_template: str | None
) -> Path:
    words = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(OTHER_ADDED_TOKENS),
        special_tokens=words + byte_tokens,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = [
        token for token in definition["added_tokens"] if token["content"] in words
    ]
    rebuilt = Tokenizer.from_str(json.dumps(definition))
    return _save(rebuilt, directory, chat_template=chat_template, end_token="</s>")


def _save(
    tokenizer: Tokenizer, directory: Path, *, chat_template: str | None, end_token: str
) -> Path:
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in OTHER_ADDED_TOKENS])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": end_token,
        "pad_token": "<|endoftext|>",
        "model_max_length": 100_000,
    }
    if end_token == "</s>":
        settings |= {"bos_token": "<s>", "unk_token": "<unk>"}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return directory
