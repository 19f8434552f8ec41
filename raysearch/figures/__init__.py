"""Figures: plain values in, Matplotlib figures and their bytes out. The only room that imports Matplotlib."""
