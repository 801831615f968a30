"""The process of a command: `sbatchgen`, or `python -m sbatchgen`."""

import atexit
import gc

gc.disable()  # before the imports: a command is over before there is garbage worth a pause
atexit.register(gc.freeze)  # a tenth of a short one would go into a last look through all modules

from sbatchgen.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
