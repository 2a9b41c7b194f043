"""Adapters in the forms in which others use them."""
