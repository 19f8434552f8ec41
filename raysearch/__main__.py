"""``python -m raysearch``: the command line."""

from raysearch.cli import main

main()
