"""Whether an answer that was read is the gold answer."""
