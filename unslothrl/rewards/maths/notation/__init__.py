"""From the text of an answer to tokens: LaTeX, Unicode and plain notation alike."""
