"""Reinforcement learning for language models that starts on one consumer GPU."""

__version__ = "0.1.0"
