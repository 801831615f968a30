"""Types of names and lines in jobs and profiles, each with a method `parse` that checks the text.

`parse` raises ValueError with one sentence, or RefusedValueError, which also has a fix.
"""

from __future__ import annotations

import re

from sbatchgen.base.units import VARIABLE, Argument, RefusedValueError, Text


class ProgramName(str):
    """The name of a program of a job, from which names of variables and files are made."""

    MOST = 30  # characters of a name
    TAKEN = frozenset(("state", "job"))  # words of the file with the states of the programs
    PREFIX = "SBATCHGEN_"  # without it, a program may read a variable such as VLLM_PORT as its own setting

    @classmethod
    def parse(cls, text: str) -> ProgramName:
        """Return a name of at most 30 lower-case letters, digits and dashes."""
        if re.fullmatch("[a-z][a-z0-9]*(?:-[a-z0-9]+)*", text) is None:
            raise ValueError(f"'{text}' can't name a program: use lower-case letters, digits and dashes")
        if len(text) > cls.MOST:
            raise ValueError(f"'{text}' can't name a program: use at most {cls.MOST} letters")
        if text in cls.TAKEN:
            raise ValueError(f"'{text}' can't name a program: the record of the programs has this word")
        return cls(text)

    @property
    def variable(self) -> str:
        """The start of its variables' names: `SBATCHGEN_` and the name, as in SBATCHGEN_SERVER_HOST."""
        return f"{self.PREFIX}{self.variable_part}"

    @property
    def variable_part(self) -> str:
        """Its name as a part of a variable's name: SERVER."""
        return self.upper().replace("-", "_")


class EnvValue(Argument):
    """The value of an environment variable, in which the job expands ${NAME}."""

    @classmethod
    def parse(cls, text: str) -> EnvValue:
        """Return the value; refuse the texts that `Argument` refuses, and a ${ that is not ${NAME}."""
        Argument.parse(text)
        if "${" in VARIABLE.sub("", text):
            fix = "write ${NAME}, or export it in the profile's setup"
            raise ValueError(f"'{text}' has a ${{ that is not ${{NAME}}, so no job expands it; {fix}")
        return cls(text)


class LinePattern(Text):
    """A regular expression for lines of a trainer's log, with a group for each number: (?P<loss>...)."""

    @classmethod
    def parse(cls, text: str) -> LinePattern:
        """Return the pattern; refuse patterns that `re` refuses, or that have no group for a number."""
        try:
            names = [*re.compile(text).groupindex]
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"'{text}' is not a regular expression: {error}") from error
        if not {*names} - {"step", "epoch"}:
            raise ValueError(f"'{text}' names no number; write one as (?P<loss>[0-9.e+-]+)")
        return cls(Text.parse(text))


class Switch(Text):
    """A setting that is on, off, or on in a special way that has its own word."""

    WORD = ""

    @classmethod
    def parse(cls, text: str) -> Switch | bool:  # type: ignore[override]
        """Return true, false or the word."""
        if text not in ("true", "false", cls.WORD):
            raise ValueError(f"'{text}' is not true, false or {cls.WORD}")
        return cls(text) if text == cls.WORD else text == "true"


class Requeue(Switch):
    """Whether Slurm may requeue a job; with "expedite" it does so at once, before other jobs."""

    WORD = "expedite"


class Preflight(Switch):
    """Whether nodes are checked before the training; "exclude": the job starts again without bad nodes."""

    WORD = "exclude"


class Citation(Text):
    """Lines of a file in a public repository, or the web address of a page."""

    # Such as "example/docs@0123abc docs/gpu.md:12-14"; a pattern of `re`, compiled at its first use.
    LINES = (
        r"(?a:(?P<repository>[\w.-]+(?:/[\w.-]+)+)@(?P<commit>[0-9a-f]{7,40}) (?P<path>[^\s:/][^\s:]*)"
        r":(?P<first>[1-9][0-9]{0,6})(?:-(?P<last>[1-9][0-9]{0,6}))?(?: (?P<digest>[0-9a-f]{8}))?)"
    )

    @classmethod
    def parse(cls, text: str) -> Citation:
        """Return the citation: OWNER/REPOSITORY@COMMIT PATH:LINES, perhaps with a digest; or https://..."""
        cited = re.fullmatch(cls.LINES, Text.parse(text))
        is_reversed = cited and cited["last"] and int(cited["last"]) < int(cited["first"])
        if cited and is_reversed:
            raise ValueError(f"'{text}' ends before line {cited['first']}")
        if cited is None and re.fullmatch(r"https?://\S+", text) is None:
            raise ValueError(
                f"'{text}' names no source: write OWNER/REPOSITORY@COMMIT PATH:LINE, as "
                "example/docs@0123abc docs/gpu.md:12-14, or https://..."
            )
        return cls(text)

    @property
    def url(self) -> str:
        """The web address at which people read it."""
        cited = re.fullmatch(self.LINES, self)
        if cited is None:
            return str(self)
        # A repository of three names begins with its host, such as gitlab.example.org/group/docs.
        host = "" if cited["repository"].count("/") > 1 else "github.com/"
        last = f"-L{cited['last']}" if cited["last"] else ""
        return f"https://{host}{cited['repository']}/blob/{cited['commit']}/{cited['path']}#L{cited['first']}{last}"


class DirectiveLine(Text):
    """A comment of the script that a program other than sbatch reads, such as `#BB ...` and `#DW ...`."""

    @classmethod
    def parse(cls, text: str) -> DirectiveLine:
        """Return the line; it must start with # and a word in capitals, other than SBATCH."""
        if re.fullmatch(r"#(?!SBATCH\b)[A-Z]+ .*", Text.parse(text)) is None:
            raise ValueError(f"'{text}' is not a line as '#DW jobdw capacity=1TB'; #SBATCH is for options")
        return cls(text)


class JobName(Text):
    """A job name that can also name a folder and a log."""

    @classmethod
    def parse(cls, text: str) -> JobName:
        """Return the name; refuse characters that would change a path: a slash, %, a backslash, and ${."""
        Text.parse(text)
        if not text or text.startswith(("-", ".")) or re.search(r"[/%\\]|\$\{", text) or text != text.strip():
            raise ValueError(
                f"job name '{text}' can't name a folder and a log: it may not be empty, hold / % \\ or ${{, "
                "start with a dash or a dot, or have blanks at its ends"
            )
        if len(text.encode()) > 200:
            raise ValueError(f"job name '{text[:20]}...' is longer than 200 bytes")
        return cls(text)


class EnvName(Text):
    """The name of an environment variable."""

    # Variables of the script itself, which a job may not set.
    SCRIPT = frozenset(
        """
        RUN_DIR DATA_DIR RESUME CODE_DIR IMAGE EDF restarts max_restarts status name folder file files
        checkpoint point needed resume_args conda_env conda_root programs main lasting ports
        RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
        """.split()  # noqa: SIM905
    )
    # Variables that bash sets itself, or that change how bash reads the script (bash(1), "Shell Variables").
    BASH = frozenset(
        """
        BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND
        BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_REMATCH BASH_SOURCE BASH_SUBSHELL
        BASH_VERSINFO BASH_VERSION COMP_CWORD COMP_KEY COMP_LINE COMP_POINT COMP_TYPE COMP_WORDBREAKS
        COMP_WORDS COPROC DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD IFS LINENO
        MAPFILE OLDPWD OPTARG OPTERR OPTIND PIPESTATUS POSIXLY_CORRECT PPID PWD RANDOM REPLY SECONDS
        SHELLOPTS SHLVL SRANDOM UID _
        """.split()  # noqa: SIM905
    )

    @classmethod
    def parse(cls, text: str) -> EnvName:
        """Return a name of letters, digits and underscores; refuse names of Slurm, bash and the script."""
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is None:
            raise ValueError(
                f"'{text}' can't name a variable: use letters, digits and underscores, as in NAME=VALUE"
            )
        if text.startswith(("SLURM_", "SBATCH_", "SRUN_")):
            raise ValueError(f"'{text}' belongs to Slurm; use Slurm's option instead of its variable")
        if text in cls.SCRIPT or text.startswith("SBATCHGEN_"):
            raise ValueError(f"'{text}' is a variable of the script itself; use another name")
        if text in cls.BASH:
            raise ValueError(f"'{text}' is set by bash itself; use another name")
        return cls(text)


class TrainerName(Text):
    """The user's own program: a file, or a Python module such as package.train."""

    MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"  # such as package.train

    @classmethod
    def parse(cls, text: str) -> TrainerName:
        """Return the name: a path, a file that ends in .py, a module, or {env:NAME} for a variable."""
        Text.parse(text)
        if not text or text.startswith("-"):
            raise RefusedValueError(f"'{text}' can't be a trainer", "give a file, or a module's name")
        is_file = text.endswith(".py") or "/" in text or text.startswith("{env:")
        if not is_file and re.fullmatch(cls.MODULE, text) is None:
            file, _, arguments = text.partition(" ")
            fix = f"--trainer {file} -- {arguments}" if file.endswith(".py") else f"write ./{text}"
            raise RefusedValueError(f"'{text}' is neither a file nor a module", fix)
        return cls(text)


class CpuList(Text):
    """Numbers of CPUs of a node, such as 1-7,65-71."""

    LAST = 8191  # Linux has no more CPUs (NR_CPUS)

    @classmethod
    def parse(cls, text: str) -> CpuList:
        """Return a list of ascending numbers and spans."""
        if re.fullmatch("[0-9]{1,4}(?:[-,][0-9]{1,4})*", text) is None or re.search("-[0-9]+-", text):
            raise ValueError(f"'{text}' is not a list of CPUs, as 1-7,65-71")
        numbers = [int(number) for number in re.split("[-,]", text)]
        if numbers != sorted({*numbers}) or numbers[-1] > cls.LAST:
            raise ValueError(f"'{text}' is not a list of CPUs in ascending order, up to {cls.LAST}")
        return cls(text)

    @property
    def mask(self) -> str:
        """The CPUs as a hexadecimal mask, such as 0xfe for 1-7."""
        spans = (span.partition("-") for span in self.split(","))
        return hex(
            sum(1 << cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))
        )


class StepOption(Text):
    """The long name of an option of srun."""

    @classmethod
    def parse(cls, text: str) -> StepOption:
        """Return a name of letters, digits, dashes and underscores, without dashes in front."""
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]+", text) is None:
            raise ValueError(f"'{text}' is not the long name of an option of srun, as cpu-bind")
        return cls(text)
