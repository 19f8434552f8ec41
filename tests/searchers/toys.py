"""What the tests of single searchers share."""

from raysearch.testing.searcher_suite import drive


def rounds_of(searcher, problem, loss, seed=0):
    """The mask that a searcher finds on a toy loss, and the masks of each of its rounds."""
    found, rounds = drive(searcher, problem, loss, seed)
    return found, [proposed.masks for proposed in rounds]
