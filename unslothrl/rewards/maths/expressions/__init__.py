"""Formulas as trees: how they are parsed, computed and compared."""
