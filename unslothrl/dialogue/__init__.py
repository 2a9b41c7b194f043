"""Conversations token by token: what was sampled is never tokenised again."""
