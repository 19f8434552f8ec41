"""Tokenizers whose tokens can be counted by hand: a token a character, and a token a word."""

from __future__ import annotations

from typing import Any

BOS, EOS = 300, 301
SPECIAL = {"<s>": BOS, "</s>": EOS, "<unk>": 302}

#: As SmolLM2's, without the system prompt: white space around a turn is kept.
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: As Llama 3's and Gemma's: turns are stripped, and have to take turns.
STRICT = (
    "<s>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

#: As Qwen 3's: thinks unless told not to.
THINKING = PLAIN.replace(
    "<assistant>{% endif %}",
    "<assistant>{% if enable_thinking is defined and enable_thinking is false %}<no>{% endif %}{% endif %}",
)


def characters(bos: bool = False, template: str | dict[str, str] | None = None, eos: bool = False) -> Any:
    """A token a character, its code; after ``<s>`` and before ``</s>`` if wanted."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {chr(code): code for code in range(256)} | SPECIAL
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if bos or eos:
        single = ["<s>"] * bos + ["$A"] + ["</s>"] * eos
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = template
    return fast


class SlowCharacters:
    """A token a character before ``</s>``, and no offsets: as tokenizers written in Python are."""

    is_fast = False
    bos_token_id = None

    def __call__(self, text: str, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        assert not verbose
        return {"input_ids": [ord(character) for character in text] + [EOS] * add_special_tokens}


def words(text: str) -> Any:
    """A token a word of `text`, with no token for the space between."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*text.split(), "<unk>"]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
