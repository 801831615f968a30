"""Evaluates each checkpoint of a folder once, until TERM; one in flight is finished.

python evaluate.py FOLDER
"""

import signal
import sys
import time
from pathlib import Path

ending: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
seen: set[Path] = set()
while True:
    new = {*Path(sys.argv[1]).glob("step-*.pt")} - seen
    for path in sorted(new):
        print(f"evaluated {path.name}: {path.stat().st_size} bytes", flush=True)
    seen |= new
    if ending and not new:
        break
    time.sleep(0.2)
