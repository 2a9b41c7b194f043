"""A learner larger than its GPU: its base, its sequences or its layers are split over several."""
