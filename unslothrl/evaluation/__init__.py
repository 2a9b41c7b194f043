"""What completions of a data set say of a policy: estimates, their intervals, and comparisons."""
