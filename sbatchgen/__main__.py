"""The process of a command: `sbatchgen`, or `python -m sbatchgen`."""

import gc

gc.disable()  # before the imports: a command is over before there is garbage worth a pause

from sbatchgen.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
