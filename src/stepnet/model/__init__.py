"""Running recurrences: calls, streams, layers, gradients, generation and inspection."""
