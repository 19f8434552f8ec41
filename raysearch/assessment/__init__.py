"""What a mask is worth where no search has looked: held-out perplexity, accuracies by lm-eval, speed and memory."""
