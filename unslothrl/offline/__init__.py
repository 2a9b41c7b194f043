"""Training on what is written already: SFT, DPO and reward models, by TRL's trainers."""
