"""`PYTHON .../environments/__main__.py DESCRIPTOR`: see `server`.

The Python may be another one than ours, with packages of its own, so that ours are not put on its
path: the package is made known without them, and modules that need no other can be imported from
it, such as `unslothrl.environments.base`.
"""

import sys
import types
from pathlib import Path

PACKAGE = "unslothrl"

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(folder.parent)]
        sys.modules[PACKAGE] = package
    sys.path[:] = [path for path in sys.path if path != str(folder)]
    from unslothrl.environments import server

    server.main(int(sys.argv[1]))
