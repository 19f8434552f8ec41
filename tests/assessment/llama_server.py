"""llama.cpp's server from the wheel xllamacpp, with the arguments of ``llama-server`` that raysearch uses."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", action="version", version=f"version: xllamacpp {xllamacpp.__version__}")
    parser.add_argument("-m", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-c", type=int, required=True)
    parser.add_argument("-np", type=int, required=True)
    parser.add_argument("-lv", type=int, required=True)
    parser.add_argument("-t", type=int, default=1)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.m
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.c
    params.n_parallel = options.np
    params.verbosity = options.lv
    params.cache_ram_mib = int(os.environ.get("LLAMA_ARG_CACHE_RAM", params.cache_ram_mib))
    params.cpuparams.n_threads = options.t
    server = xllamacpp.Server(params)
    sys.stderr.write(f"llama.cpp listens on {server.listening_address}\n")
    signal.pause()


if __name__ == "__main__":
    main()
