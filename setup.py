"""What pyproject.toml cannot say: the repository's recipes/ is installed as unslothrl/recipes/, and
the checker of answers, which is a distribution of its own as well, comes with it."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["unslothrl*"], exclude=["*__pycache__*"]),
        "unslothrl.recipes",
        "answercheck",
    ],
    package_dir={
        "unslothrl.recipes": "recipes",
        "answercheck": "packages/answercheck/answercheck",
    },
)
