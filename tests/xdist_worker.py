"""A worker of pytest in a fork: the code with which execnet starts a new interpreter, ``python -u -c CODE``."""

import sys

exec(sys.argv[-1])
