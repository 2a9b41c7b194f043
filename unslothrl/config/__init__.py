"""The options of a run: the table, what reads and writes it, and what contradicts itself."""
