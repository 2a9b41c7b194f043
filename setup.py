"""What pyproject.toml cannot say: the repository's recipes/ is installed as unslothrl/recipes/."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["unslothrl*"], exclude=["*__pycache__*"]),
        "unslothrl.recipes",
    ],
    package_dir={"unslothrl.recipes": "recipes"},
)
