"""A worker of pytest in a fork: the code with which execnet starts a new interpreter, ``python -u -c CODE``."""

import sys

if __name__ == "__main__":  # a process pool of a test imports this file under another name
    exec(sys.argv[-1])
