"""Conversations token by token: what was sampled is never tokenised again. `dialogue_for` chooses
who writes and reads a model's turns: a hand-written renderer of its family, or its chat template.
"""
