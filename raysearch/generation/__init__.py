"""Text that a model generates: how it is written, scored, and described where it degenerates."""
