"""What pyproject.toml cannot say: the repository's recipes/ is installed as unslothrl/recipes/, the
pages of docs/ that the program reads beside the package's modules, and the checker of answers,
which is a distribution of its own as well, comes with them."""

from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

PAGES = ("coming-from.md", "metrics.md")  # of hints in error messages, and of a report's charts


class BuildWithPages(build_py):
    """Installs them."""

    def run(self):
        super().run()
        for page in () if self.editable_mode else PAGES:
            self.copy_file(f"docs/{page}", str(Path(self.build_lib) / "unslothrl" / page))


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
    cmdclass={"build_py": BuildWithPages},
)
