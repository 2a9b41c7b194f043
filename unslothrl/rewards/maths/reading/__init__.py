"""From tokens to an answer of one of the kinds."""
