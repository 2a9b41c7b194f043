"""What pyproject.toml cannot say: the repository's recipes/ is installed as unslothrl/recipes/, the
page that names the options of other systems, docs/coming-from.md, beside the package's modules, and
the checker of answers, which is a distribution of its own as well, comes with them."""

from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

PAGE = "coming-from.md"


class BuildWithPage(build_py):
    """Installs the page, from which error messages take their hints."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file(f"docs/{PAGE}", str(Path(self.build_lib) / "unslothrl" / PAGE))


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
    cmdclass={"build_py": BuildWithPage},
)
