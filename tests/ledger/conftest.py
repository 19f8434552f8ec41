"""The tiny model and calibration of the evaluation tests."""

from tests.evaluation.conftest import calibration, closed_in_the_end, make_replica, model

__all__ = ["calibration", "closed_in_the_end", "make_replica", "model"]
