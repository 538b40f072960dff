"""Generation of sequences: greedy, by samples and by beams, with and without Python between symbols."""
