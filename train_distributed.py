"""Train a language model by reinforcement learning, on one machine or many.

    python train_distributed.py --learner grpo

Without a GPU this trains the package's own tiny base on arithmetic; with one, Qwen2.5 on MATH-500.
`--help` lists the everyday options, `--help-all` all of them; `--recipe` takes a file of options,
or a name from recipes/.
"""

import sys

try:
    from unslothrl.__main__ import program
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] == "unslothrl":
        raise
    sys.exit(
        f"unslothrl: {error.name} is not installed for {sys.executable}: run `make setup`, then "
        "`. .venv/bin/activate`"
    )

if __name__ == "__main__":
    program(["train", *sys.argv[1:]])
