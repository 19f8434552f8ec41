"""Prompts in a batch get the texts that each prompt gets alone."""

import random
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicSlidingWindowLayer

from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.generation import decoding
from raysearch.generation.decoding import generate
from raysearch.generation.prompt import Decoding, Prompt, Written
from raysearch.models.stack import LayerStack
from raysearch.testing.objective_suite import VOCABULARY, tiny_model
from tests.sentences import Sentences


class Numbers:
    """A tokenizer that writes tokens as numbers."""

    eos_token_id = 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(f" {token}" for token in ids)


def prompts(n: int = 9, most: int = 12, stop: tuple[str, ...] = (" 7",)) -> list[Prompt]:
    draw = random.Random(0)
    return [Prompt(tuple(draw.randrange(1, VOCABULARY) for _ in range(3 + i)), most + i % 3, stop) for i in range(n)]


DECODINGS = {
    "greedy": Decoding(),
    "drawn": Decoding(1.0),
    "top k": Decoding(1.5, top_k=5),
    "nucleus": Decoding(2.0, top_k=9, top_p=0.9, seed=1),
}


@pytest.mark.parametrize("name", DECODINGS)
def test_the_same_texts_for_any_batch(name):
    options = DECODINGS[name]
    stack = LayerStack(tiny_model(n_layers=2))
    with stack.bypassed(Mask.of(1)) as model:
        single = [generate(model, Numbers(), [prompt], options)[0][0] for prompt in prompts()]
        for rows in (2, 3, 16):
            assert generate(model, Numbers(), prompts(), options, rows)[0] == single
        assert generate(model, Numbers(), prompts()[::-1], options, 4)[0][::-1] == single


@pytest.mark.parametrize("name", DECODINGS)
def test_choices_that_an_error_could_change_are_made_alone(name, monkeypatch):
    """With an error as large as any logit, every choice is made by the row alone, and the texts are the same."""
    model = tiny_model(n_layers=2)
    texts = generate(model, Numbers(), prompts(), DECODINGS[name], 4)[0]
    monkeypatch.setattr(decoding, "_ERROR", 1e9)
    assert generate(model, Numbers(), prompts(), DECODINGS[name], 4)[0] == texts


def test_a_cache_with_room_holds_what_that_of_transformers_holds(monkeypatch):
    monkeypatch.setattr(decoding, "_ROOM", 3)
    model = tiny_model(n_layers=2)
    standard = DynamicCache(config=model.config)
    roomy = decoding._cache(model)
    assert roomy is not None
    for n_new in (5, 1, 1, 1, 1, 7, 1):
        keys, values = (torch.randn(2, 3, n_new, width) for width in (4, 8))
        assert all(map(torch.equal, standard.update(keys, values, 1), roomy.update(keys, values, 1)))
        assert standard.get_seq_length(1) == roomy.get_seq_length(1)
    kinds = ["sliding_attention", "full_attention"]
    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=2, layer_types=kinds)
    mixed = decoding._cache(SimpleNamespace(config=config))
    assert mixed is not None
    assert [type(layer) for layer in mixed.layers] == [DynamicSlidingWindowLayer, decoding._RoomyLayer]
    assert decoding._cache(SimpleNamespace(config=AutoConfig.for_model("mamba"))) is None


def test_greedy_texts_are_those_of_transformers():
    model = tiny_model(n_layers=2)
    end = model.generation_config.eos_token_id
    for prompt in prompts(stop=()):
        whole = model.generate(  # type: ignore[misc]
            torch.tensor([prompt.ids]), do_sample=False, max_new_tokens=prompt.max_new_tokens, pad_token_id=0
        )
        new = whole[0, len(prompt.ids) :].tolist()
        (written,), _ = generate(model, Numbers(), [prompt])
        assert written.text == Numbers().decode(new[:-1] if new[-1] == end else new, True)
        assert (written.n_tokens, written.cut_off) == (len(new), end not in new)


def test_the_models_own_settings_change_no_text(sentences: Sentences):
    model = tiny_model(n_layers=2)
    plain = generate(model, Numbers(), prompts())[0]
    model.generation_config.update(num_beams=3, stop_strings=["1"], repetition_penalty=5.0)
    assert generate(model, Numbers(), prompts())[0] == plain
    model.generation_config.eos_token_id = "x"
    with sentences.refused(UserError):
        generate(model, Numbers(), prompts())


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_no_position_is_read_beyond_the_models_last(kind, monkeypatch, sentences: Sentences):
    """A GPU could not be used any more after that."""
    sizes = {"vocab_size": 64, "max_position_embeddings": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    widths = {"n_embd": 8} if kind == "gpt2" else {"hidden_size": 8, "ffn_dim": 16, "word_embed_proj_dim": 8}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **widths)).eval()
    model.generation_config.eos_token_id = 64  # not in the vocabulary, so no answer ends early
    positions_read = [0]
    forward = torch.nn.Embedding.forward

    def recording_forward(self, ids):
        if self is not model.get_input_embeddings():
            positions_read.append(int(ids.max()) + 1)
        return forward(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", recording_forward)
    table_size = 18 if kind == "opt" else 16
    long_prompt = Prompt(tuple(range(14)), 3)
    short_prompts = [Prompt((n,), 16) for n in range(5)]
    texts = generate(model, Numbers(), [long_prompt, *short_prompts])[0]
    assert [text.n_tokens for text in texts] == [3, *[16] * 5]
    assert max(positions_read) <= table_size
    with sentences.refused(UserError):
        generate(model, Numbers(), [Prompt(tuple(range(14)), 4), *short_prompts])
    assert max(positions_read) <= table_size


def test_an_answer_ends_at_a_stop():
    model = tiny_model(n_layers=2)
    (whole,), _ = generate(model, Numbers(), [Prompt((3, 4, 5), 20)])
    fourth = whole.text.split()[3]
    (cut,), _ = generate(model, Numbers(), [Prompt((3, 4, 5), 20, (f" {fourth}",))])
    assert whole.text.startswith(cut.text)
    assert f" {fourth}" not in cut.text
    assert not cut.cut_off
    assert cut.n_tokens <= 4
    assert cut.n_tokens == len(cut.text.split()) + 1


def pieces(decoder: decoders.Decoder, *words: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are these words."""
    model = models.BPE({word: number for number, word in enumerate(("</s>", *words))}, [], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


#: Like the decoders of Llama 2, Mistral 7B, TinyLlama and Phi 3.
STRIP = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


@pytest.mark.parametrize(
    ("decoder", "prompt", "new", "text"),
    [
        (STRIP, [":", "<0x0A>"], ["▁▁▁▁", "return"], "    return"),
        (STRIP, ["a", "▁"], ["▁", "b"], " b"),
        (STRIP, ["</s>"], ["▁b"], "b"),  # the space that stands for the beginning of a text
        (STRIP, ["<0xC3>", "<0xBC>"], ["▁b"], " b"),
        (STRIP, ["<0x0A>"], ["<0xC3>", "<0xBC>"], "ü"),
        (STRIP, ["<0x0A>"], ["<0xC3>"], "\ufffd"),
        (decoders.ByteLevel(), ["a", "Ċ"], ["Ġ", "b"], " b"),
        (decoders.ByteLevel(), ["Ã", "¼"], ["Ġ", "Ã"], " \ufffd"),
    ],
)
def test_an_answer_keeps_the_space_it_begins_with(decoder, prompt, new, text):
    tokenizer = pieces(decoder, *sorted({*prompt, *new} - {"</s>"}))
    prompt_ids = [tokenizer.vocab[piece] for piece in prompt]
    new_ids = [tokenizer.vocab[piece] for piece in new]
    for stop in ((), (text[:2],)):
        answer = decoding._Text(Prompt(tuple(prompt_ids), len(new), stop), tokenizer, frozenset({0}), None)
        for token in new_ids:
            answer.add(token)
        assert answer.written() == Written("" if stop else text, len(new), not stop)
        assert answer.is_done


def drawn_alone(logits: torch.Tensor, draw: float, options: Decoding) -> int:
    """Return the first token, by number, up to which the probabilities add up to more than `draw`."""
    logits = logits.double() / options.temperature
    order = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    candidates = order[: options.top_k or None]
    if options.top_p < 1:
        below = logits[candidates].softmax(-1).cumsum(-1)
        candidates = candidates[: int((below < options.top_p).sum()) + 1]
    candidates.sort()
    up_to = logits[candidates].softmax(-1).cumsum(-1)
    return candidates[min(int((up_to <= draw).sum()), len(candidates) - 1)]


@pytest.mark.parametrize("options", [*DECODINGS.values(), Decoding(1.0, top_p=0.7), Decoding(0.5, top_k=100)])
def test_rows_drawn_at_once_are_those_drawn_alone(options):
    torch.manual_seed(0)
    # Rounded as in half precision, so that many logits are equal.
    logits = torch.randn(200, 40).mul(2).round(decimals=0 if options.top_k else 1)
    draws = [0.0, 1 - 2**-53, *torch.rand(198, dtype=torch.float64).tolist()]
    tokens = decoding._chosen(logits, draws, options, torch.zeros(200).double())[0].tolist()
    if options.temperature:
        expected = [drawn_alone(row, draw, options) for row, draw in zip(logits, draws, strict=True)]
        assert tokens == expected
    else:
        assert tokens == logits.argmax(-1).tolist()


def test_a_choice_that_an_error_could_change_is_marked():
    """Each of 2,000 rows is changed by less than the margin. If the token changes, it was marked as not sure."""
    torch.manual_seed(0)
    logits = torch.randn(2000, 20)
    draws = torch.rand(2000, dtype=torch.float64).tolist()
    for options in (*DECODINGS.values(), Decoding(1.0, top_p=0.7)):
        margins = torch.full((2000,), 0.005, dtype=torch.float64)
        token, sure = decoding._chosen(logits, draws, options, margins)
        n_changed = 0
        for _ in range(5):
            noisy_logits = logits + 0.005 * (torch.rand(2000, 20) - 0.5)
            noisy_token, _ = decoding._chosen(noisy_logits, draws, options, margins)
            assert not (sure.bool() & (token != noisy_token)).any()
            n_changed += int((token != noisy_token).sum())
        assert n_changed > 5
        assert sure.double().mean() > 0.5


def test_a_model_whose_cache_or_padding_is_not_its_own_is_refused(sentences: Sentences):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "attention_hidden_size": 32, "intermediate_size": 32}
    config = AutoConfig.for_model("rwkv", **sizes, num_hidden_layers=2)  # it has a state, and takes no mask
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
    with sentences.refused(UnsupportedModelError):
        generate(model, Numbers(), prompts())


def test_an_error_of_a_models_own_generation_is_one_sentence(sentences: Sentences):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "attention_hidden_size": 32, "intermediate_size": 32}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("rwkv", **sizes, num_hidden_layers=3)).eval()
    with LayerStack(model).bypassed(Mask.of(1)), sentences.refused(UnsupportedModelError):
        generate(model, Numbers(), prompts())


def test_a_model_without_a_cache_writes_what_transformers_writes():
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("openai-gpt", **sizes)).eval()
    all_prompts = prompts(stop=())
    for prompt, written in zip(all_prompts, generate(model, Numbers(), all_prompts)[0], strict=True):
        ids = torch.tensor([prompt.ids])
        single = model.generate(
            ids, max_new_tokens=prompt.max_new_tokens, do_sample=False, eos_token_id=0, pad_token_id=0
        )
        new = single[0, len(prompt.ids) :].tolist()
        assert written.text == Numbers().decode(new[: new.index(0)] if 0 in new else new, True)


def test_a_token_at_the_edge_of_a_nucleus_leaves_other_choices_sure():
    """In a large vocabulary, some token is always at the edge. Each row that is not sure costs a separate pass."""
    torch.manual_seed(0)
    logits = torch.randn(50, 20_000) * 4
    draws = torch.rand(50, dtype=torch.float64).tolist()
    margins = torch.full((50,), 2e-4, dtype=torch.float64)
    _, sure = decoding._chosen(logits, draws, Decoding(0.9, top_p=0.95), margins)
    assert sure.double().mean() > 0.8


def test_no_prompts_no_texts():
    assert generate(tiny_model(), Numbers(), []) == ([], 0)


def test_batches_of_half_precision_follow_from_the_prompts():
    """In half precision texts depend on the batch; the same list of prompts gives the same texts."""
    model = tiny_model(n_layers=2).bfloat16()
    texts = generate(model, Numbers(), prompts(), rows=4)[0]
    assert generate(model, Numbers(), prompts(), rows=4)[0] == texts
