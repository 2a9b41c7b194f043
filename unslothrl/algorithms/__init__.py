"""The maths, one idea a file, as pure functions: what a step rewards, compares, clips and averages.

`objectives/` puts the parts together; `objective` says which parts there are, `losses` how they
make a loss. Nothing here knows a config, a model or a process.
"""
