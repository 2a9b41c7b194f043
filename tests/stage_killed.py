"""A run of `unslothrl sft`, `dpo` or `rm` that tells when it enters a phase; see `killed`.

python tests/stage_killed.py PHASE NUMBER DESCRIPTOR -- arguments
"""

from killed import main

PHASES = {  # name -> module, class or "", function
    "none": ("unslothrl.offline.run", "", "run"),
    "read": ("unslothrl.offline.tables", "", "load"),
    "load": ("unslothrl.offline.training", "", "trainer_of"),
    "step": ("unslothrl.offline.trainers", "StageTrainer", "training_step"),
    "evaluation": ("unslothrl.offline.trainers", "StageTrainer", "prediction_step"),
    "log": ("unslothrl.offline.run", "StageRun", "finished"),
    "checkpoint": ("unslothrl.offline.run", "StageCheckpoints", "seal"),
    "rename": ("unslothrl.checkpoints.store", "", "replace_folder"),
    "latest": ("unslothrl.checkpoints.store", "", "write_whole"),
    "adapter": ("unslothrl.offline.run", "StageRun", "save_adapter"),
}

if __name__ == "__main__":
    main(PHASES)
