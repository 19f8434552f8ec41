"""Cut layers out of a large checkpoint under a limit of memory, in turns with a plain copy of it.

    python experiments/benchmarks/large_export.py --folder /big/disk --gigabytes 16 --repeats 2

The checkpoint is a Llama in bfloat16 with random bytes, in shards of 5 GB. It and two copies must fit on the disk. The
files are written by raysearch in a process whose virtual memory is limited to 1 GiB, as is that of its child, which
reads the config by transformers. Each copy is removed before the next one, and the operating system's cache is emptied
if that is permitted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from raysearch.checkpoints.checkpoint import INDEX

SHARD_BYTES = 5 * 10**9
LIMIT_BYTES = 2**30
HIDDEN, INTERMEDIATE, HEADS, VOCABULARY = 4096, 14336, 32, 32000
N_REMOVED = 2


def shapes(n_layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each tensor."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(n_layers):
        for name in "qkvo":
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", (HIDDEN, HIDDEN)
        for name in ("gate", "up"):
            yield f"model.layers.{layer}.mlp.{name}_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"model.layers.{layer}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
        for name in ("input", "post_attention"):
            yield f"model.layers.{layer}.{name}_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def write_checkpoint(folder: Path, n_bytes: int) -> int:
    """Write a checkpoint of random bytes, and return its number of layers.

    Args:
        folder: The folder to write.
        n_bytes: The size of the tensors, about.
    """
    sizes = {name: 2 * int(np.prod(shape)) for name, shape in shapes(1)}
    layer_bytes = sum(size for name, size in sizes.items() if ".layers." in name)
    n_layers = round((n_bytes - sum(sizes.values())) / layer_bytes) + 1
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    filled = 0
    for name, shape in shapes(n_layers):
        size = 2 * int(np.prod(shape))
        if filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append((name, shape))
        filled += size
    random = np.random.default_rng(0)
    weight_map = {}
    for place, shard in enumerate(shards, 1):
        file = folder / f"model-{place:05}-of-{len(shards):05}.safetensors"
        header, offset = {}, 0
        for name, shape in shard:
            end = offset + 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
            weight_map[name] = file.name
            offset = end
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        with file.open("wb") as stream:
            stream.write(len(encoded).to_bytes(8, "little") + encoded)
            for _, shape in shard:
                stream.write(random.bytes(2 * int(np.prod(shape))))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": n_layers,
        "vocab_size": VOCABULARY,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return n_layers


def cut(source: Path, out: Path, n_layers: int) -> None:
    """Write the checkpoint without two layers in this process; refuse if torch was imported."""
    from raysearch.checkpoints.kept_blocks import KeptBlocks
    from raysearch.models.export import write_files

    kept_layers = [layer for layer in range(n_layers) if not n_layers // 2 <= layer < n_layers // 2 + N_REMOVED]
    out.mkdir()
    write_files(out, source, KeptBlocks.whole(kept_layers, n_layers), trust_remote_code=False)
    if "torch" in sys.modules:
        raise RuntimeError("torch was imported")
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    print(f", at most {status['VmHWM'].strip()} resident and {status['VmPeak'].strip()} virtual", end="")


def empty_cache() -> bool:
    """Write what is not yet on the disk, empty the operating system's cache, and return whether that was permitted."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def seconds(command: list[str], limit: int | None = None) -> tuple[float, str]:
    """Run a command, and return its time and its output.

    Args:
        command: The command.
        limit: The largest virtual memory of each of its processes, in bytes; None for none.
    """
    empty = empty_cache()
    start = time.perf_counter()
    prefix = [] if limit is None else ["prlimit", f"--as={limit}"]
    output = subprocess.run([*prefix, *command], check=True, capture_output=True, text=True).stdout
    os.sync()
    return time.perf_counter() - start, f"{output}{'' if empty else ' (cache not emptied)'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the checkpoint and its copies are written")
    parser.add_argument("--gigabytes", type=float, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cut", nargs=3, help=argparse.SUPPRESS)  # of one run: source, out, number of layers
    options = parser.parse_args()
    if options.cut:
        source, out, n_layers = options.cut
        cut(Path(source), Path(out), int(n_layers))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        source, out = Path(temporary) / "dense", Path(temporary) / "out"
        source.mkdir()
        n_layers = write_checkpoint(source, round(options.gigabytes * 1e9))
        size = sum(file.stat().st_size for file in source.iterdir())
        print(f"{size / 1e9:.1f} GB, {n_layers} layers", flush=True)
        times: dict[str, list[float]] = {"copy": [], "export": []}
        for _ in range(options.repeats):
            for name, command, limit in (
                ("copy", ["cp", "-r", str(source), str(out)], None),
                ("export", [sys.executable, __file__, "--cut", str(source), str(out), str(n_layers)], LIMIT_BYTES),
            ):
                elapsed, output = seconds(command, limit)
                written = sum(file.stat().st_size for file in out.iterdir())
                times[name].append(elapsed)
                print(f"{name}: {elapsed:.1f} s, {written / 1e9:.1f} GB{output}", flush=True)
                shutil.rmtree(out)
        print(f"export / copy: {statistics.median(times['export']) / statistics.median(times['copy']):.2f}")


if __name__ == "__main__":
    main()
