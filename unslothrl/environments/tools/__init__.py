"""Tools of this package, by their file's name: `--tools python`, `--tools search:FILE`."""
