"""`python -m unslothrl`: the same program as `unslothrl`."""

import sys

from unslothrl.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
