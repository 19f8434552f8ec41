"""Masks compared with the dense model on other data: held-out perplexity, accuracies by lm-eval, speed and memory."""
