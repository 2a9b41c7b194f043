"""What pyproject.toml cannot say. The repository's recipes/ is installed as unslothrl/recipes/. The
checker of answers, which is a distribution of its own as well, comes with the package, and so do
files of the repository that the program reads: pages, and the locks with what installs them."""

from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

FILES = {
    "docs/coming-from.md": "coming-from.md",  # hints in error messages
    "docs/metrics.md": "metrics.md",  # charts of a report
    "docs/using.md": "using.md",  # examples in the help
    **{name: name for name in ("requirements.txt", "requirements-cpu.txt")},
    **{f"tools/{name}.py": f"tools/{name}.py" for name in ("setup_here", "setup_env", "machine")},
}  # source -> where it is in unslothrl/; of `unslothrl setup` each lies as it does at the root


class BuildWithFiles(build_py):
    """Installs them, and puts them into an archive of the source."""

    def run(self):
        super().run()
        for source, name in () if self.editable_mode else FILES.items():
            target = Path(self.build_lib) / "unslothrl" / name
            self.mkpath(str(target.parent))
            self.copy_file(source, str(target))

    def get_source_files(self):
        return [*super().get_source_files(), *FILES]


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
    cmdclass={"build_py": BuildWithFiles},
)
