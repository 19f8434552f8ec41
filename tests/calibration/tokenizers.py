"""Tokenizers whose tokens can be counted by hand: one token for each character, or for each word."""

from __future__ import annotations

from typing import Any

BOS = 300
EOS = 301
SPECIAL = {"<s>": BOS, "</s>": EOS, "<unk>": 302}

#: Like SmolLM2's template, without the system prompt: white space around a turn stays.
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: Like the templates of Llama 3 and Gemma: turns are stripped, and roles must alternate.
STRICT = (
    "<s>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

#: Like Qwen 3's template: the model thinks unless thinking is disabled.
THINKING = PLAIN.replace(
    "<assistant>{% endif %}",
    "<assistant>{% if enable_thinking is defined and enable_thinking is false %}<no>{% endif %}{% endif %}",
)


def characters(bos: bool = False, template: str | dict[str, str] | None = None, eos: bool = False) -> Any:
    """Return a tokenizer whose tokens are codes of characters; it adds ``<s>`` if `bos`, and ``</s>`` if `eos`."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {chr(code): code for code in range(256)} | SPECIAL
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if bos or eos:
        single = [*(["<s>"] if bos else []), "$A", *(["</s>"] if eos else [])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = template
    return fast


class SlowCharacters:
    """A tokenizer of characters that adds ``</s>`` and gives no offsets, like tokenizers written in Python."""

    is_fast = False
    bos_token_id = None

    def __call__(self, text: str, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        assert not verbose
        ids = [ord(character) for character in text]
        return {"input_ids": [*ids, EOS] if add_special_tokens else ids}


def words(text: str) -> Any:
    """Return a tokenizer with a token for each word of `text`, and no token for spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*text.split(), "<unk>"]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
