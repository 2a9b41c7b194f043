"""One skeleton of a run, for RL and for SFT, DPO and reward models."""
