"""`python -m mcproxy` is `mcproxy`."""

import sys

from mcproxy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
