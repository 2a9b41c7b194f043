"""The processes in which environments run. Nothing here imports more than the standard library and
what the user's file does: see `__main__`."""
