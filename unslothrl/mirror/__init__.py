"""`--mirror`: a second copy of a run's folder, on any file system that fsspec knows."""
