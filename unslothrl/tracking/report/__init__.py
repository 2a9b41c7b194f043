"""report.html: what a run did, and how to read it; with scripts beside it for its rollouts."""
