"""`python -m enginecore_curve FILE`: make a key pair.

The secret key goes into the file, which must not exist yet; the public one is printed.
"""

import os
import sys
from collections.abc import Sequence

from enginecore_curve.keys import new_key_pair

EXIT_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m enginecore_curve FILE", file=sys.stderr)
        return EXIT_USAGE
    pair = new_key_pair()
    try:
        descriptor = os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        print(f"enginecore_curve: cannot make {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 1
    with os.fdopen(descriptor, "w") as file:
        file.write(pair.secret + "\n")
    print(pair.public)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
