#!/usr/bin/env python3
"""How long a shell waits for Tab: the function of the completion script that `sbatchgen completion` prints.

    python benchmarks/completion.py         # in bash, and in fish and zsh where they are installed

Exit status: 1 if a line takes 100 ms or more in a shell. A busy machine is slower.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

LIMIT_MS, TIMES = 100, 10
LINES = (
    "re",
    "render ddp --nod",
    "render ddp --runtime ",
    "render ddp --profile l",
    "render ddp --profile perlmutter --qos ",
    "render ddp --profile lumi --partition ",
    "profile show l",
    "lint --explain SB1",
    "logs ",
)
PROGRAMS = {
    "bash": """
        eval "$(sbatchgen completion bash)"
        IFS=' ' read -ra COMP_WORDS <<<"sbatchgen $LINE"
        [[ $LINE == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        for turn in $(seq "$TIMES"); do
            start=$EPOCHREALTIME; _sbatchgen_completion sbatchgen 2>/dev/null; end=$EPOCHREALTIME
            echo $((${end/./} - ${start/./}))
        done
    """,
    "zsh": """
        zmodload zsh/datetime
        compdef() { }; compadd() { }; _describe() { }; _path_files() { }
        eval "$(sbatchgen completion zsh)"
        words=("${(@s: :)${:-sbatchgen $LINE}}") CURRENT=${#words}
        repeat $TIMES; do
            start=$EPOCHREALTIME; _sbatchgen_completion
            printf '%.0f\\n' $(((EPOCHREALTIME - start) * 1000000))
        done
    """,
    "fish": """
        sbatchgen completion fish | source
        for turn in (seq $TIMES)
            set start (date +%s%N); complete -C "sbatchgen $LINE" >/dev/null
            math --scale 0 "("(date +%s%N)" - $start) / 1000"
        end
    """,
}


def main() -> None:
    """Print the median of each line in each shell."""
    shells = [shell for shell in PROGRAMS if shutil.which(shell)]
    print(f"{'ms, the median of ' + str(TIMES):<42}", *(f"{shell:>5}" for shell in shells))
    slowest = 0.0
    for line in LINES:
        medians = [median_ms(shell, line) for shell in shells]
        slowest = max(slowest, *medians)
        print(f"sbatchgen {line:<32}", *(f"{median:5.0f}" for median in medians))
    sys.exit(int(slowest >= LIMIT_MS))


def median_ms(shell: str, line: str) -> float:
    """Return the median time of a completion in milliseconds."""
    program = ["env", f"LINE={line}", f"TIMES={TIMES}", shell, "-c", PROGRAMS[shell]]
    times = sorted(map(int, subprocess.check_output(program, text=True).split()))
    return times[len(times) // 2] / 1000


if __name__ == "__main__":
    main()
