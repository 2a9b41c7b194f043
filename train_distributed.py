"""Train a language model by reinforcement learning, on one machine or many.

    python train_distributed.py --learner grpo

Without a GPU this trains the package's own tiny base on arithmetic; with one, Qwen2.5 on MATH-500.
`--help` lists every option; `--recipe` takes a file of them, or a name from recipes/.
"""

import sys

from unslothrl.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
