"""Generated text: generation, scores, and measures of its degeneration."""
