"""Running recurrences: calls, streams, layers, generation, and looking inside."""
