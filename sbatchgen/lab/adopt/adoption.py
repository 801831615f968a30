"""The adoption of a script, for `sbatchgen adopt`: a job YAML, a profile, and the account of the lines.

The account says what has become of each line of the script. To check the result, the job and the profile are
rendered, and the new script is compared with the old script. Both must request the same of Slurm and start
the same programs. The account also lists each difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sbatchgen.base.errors import DocumentError, SbatchgenError
from sbatchgen.base.finding import Finding
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.quoting import word
from sbatchgen.base.units import is_utf8
from sbatchgen.check.lint.linter import lint, marks_secret
from sbatchgen.check.sbatch.header import READ_KINDS
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.render import exports
from sbatchgen.jobs.render.render import render, rendered_by
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.lab.adopt import documents, preamble, proof, side_by_side, slurm_options, training
from sbatchgen.lab.adopt.adopted_launch import adopt_launch
from sbatchgen.lab.adopt.block import blocks
from sbatchgen.lab.adopt.draft import SUBMIT_DIR, Draft
from sbatchgen.lab.adopt.remarks import AccountRow, Outcome, Remark, rows_of
from sbatchgen.lab.adopt.simplified_script import SimplifiedScript, simplify

# The files that bash -l reads, in its order: bash(1), INVOCATION.
_LOGIN_LINES = (
    "source /etc/profile",
    "for file in ~/.bash_profile ~/.bash_login ~/.profile; do",
    '    [[ -r $file ]] && { source "$file"; break; }',
    "done",
)
_REQUIRING_OPERATORS = ("", ":?", "?")  # operators of expansions that fail without a value


@frozen(kw_only=True)
class Adoption:
    """A script converted into a job and a profile."""

    script: str  # the script's file
    scheduler: str  # the script's scheduler, such as "PBS"; "" for Slurm
    name: str  # the name of the job's file without its suffix .yaml
    remarks: Sequence[Remark]  # the outcomes of the lines, with their reasons
    lines: Mapping[int, Outcome]  # the outcome of each line that is not empty
    mended: Sequence[Finding] = ()  # findings of lint in the old script that the rendered script lacks
    remaining: Sequence[Finding] = ()  # findings in the old script that the rendered script also has
    notes: Sequence[str] = ()  # differences of the new script
    job: str = ""  # the job YAML; "" if no job can be made of the script
    profile: str = ""  # the profile as YAML
    rendered: str = ""  # the script that is rendered from the job and the profile

    @cached_property
    def rows(self) -> list[AccountRow]:
        """The rows of the account, which are made of the remarks."""
        return rows_of(self.remarks)

    @property
    def lost(self) -> list[AccountRow]:
        """The rows whose lines no key of a job or a profile expresses."""
        return [row for row in self.rows if row.outcome == "lost"]

    @property
    def file(self) -> str:
        """The name of the job's file."""
        return f"{self.name}.yaml"

    @property
    def files(self) -> dict[str, str]:
        """The texts of the files by name; empty if no job can be made."""
        return {self.file: self.job, f"{self.name}-cluster.yaml": self.profile} if self.job else {}


def adopt(text: str, *, file: str, user: Mapping[str, str], day: str, folder: Path | None = None) -> Adoption:
    """Convert a script that is submitted in `folder` into a job and a profile.

    `text` is the script and `file` its name. `day` is the date that the profile gets. `user` is the
    environment of the user, which gives the values of HOME and USER. Raises DocumentError if sbatch refuses
    the script, or if bash can't read it.
    """
    script = JobScript(file=file, text=text, is_release_assumed=True, folder=folder)
    # A script that only an older Slurm accepts is read as that Slurm reads it.
    if script.sbatch.refusal and script.read_by(OLD_SLURM).sbatch.refusal is None:
        script = script.read_by(OLD_SLURM)
    _refuse_unreadable(script)
    findings = [finding for finding in lint(script) if not finding.pedantic and finding.severity != "info"]
    secrets = frozenset(finding.place.line for finding in findings if marks_secret(finding.rule))
    simplified = simplify(script)
    draft = Draft(script=simplified.script, environment=user, secrets=secrets)
    if simplified.defaults:
        values = ", ".join(f"{variable} is {default}" for variable, default in simplified.defaults.items())
        draft.note(f"the job always has the defaults of the script, whatever you export: {values}")
    _note_new_names(draft, simplified.new_names)
    _convert(draft, simplified)
    name = file.rpartition("/")[2]
    name = name.rpartition(".")[0] or name
    if not name or name.strip("<>-.") != name:  # such as <stdin>
        name = "job"
    has_job = bool(draft.job.keys() & {"mode", "programs"})
    return _with_files(draft, findings, name, day) if has_job else _without_files(draft, name)


def _note_new_names(draft: Draft, new_names: Mapping[str, str]) -> None:
    """Note the variables and positional parameters that have new names in the simplified script."""
    for old, new in new_names.items():
        needs_value = any(
            use.name == new and use.operator in _REQUIRING_OPERATORS for use in draft.body.variable_uses
        )
        if not old.isdigit():  # a variable, not a positional parameter
            draft.note(f"the kept lines use {new} for {old}, because the new script sets {old} itself")
        elif needs_value:
            draft.env[new] = None
            draft.note(f"${old} is the variable {new} here: export it where you submit")


def _refuse_unreadable(script: JobScript) -> None:
    """Raise DocumentError for a text that is not an sbatch script in bash."""
    if render_command := rendered_by(script.text):
        what = f"{script.file} was rendered by sbatchgen: it has a job already"
        raise DocumentError.of(what, at=f"{script.file}:2", fix=render_command)
    typed_name = "-" if script.file == "<stdin>" else word(script.file)  # both commands read stdin for -
    if refusal := script.sbatch.refusal:
        what = f"sbatch refuses the script: {refusal.text or 'an option asks for help'}"
        at = f"{script.file}:{refusal.line}" if refusal.line else script.file
        raise DocumentError.of(what, at=at, fix=f"sbatchgen lint {typed_name}")
    if not is_utf8(script.text):
        raise DocumentError.of(f"{script.file} is not UTF-8", fix="make it UTF-8, as iconv -f LATIN1 does")
    language = script.body.language
    if language not in ("bash", "sh"):
        what = f"{script.file} is a script of {language}, not of bash"
        raise DocumentError.of(what, at=f"{script.file}:1")
    if faults := script.body.faults:
        first = faults[0]
        raise DocumentError.of(first.message, at=f"{script.file}:{first.line}", fix=f"bash -n {typed_name}")


def _convert(draft: Draft, simplified: SimplifiedScript) -> None:
    """Convert the lines of the script into keys of the job and the profile, and note their outcomes."""
    script = draft.script
    slurm_options.adopt_options(draft)
    for flag in script.body.flags.split():
        draft.setup += _LOGIN_LINES if flag in ("-l", "--login") else [f"set {flag}"]
    if draft.setup:
        draft.add((1,), "kept", f"{script.body.flags} of the first line, in setup")
    else:
        draft.add((1,), "understood", "bash")
    _drop_comments(draft)
    statements = blocks(script.body)
    if steps := side_by_side.find_steps(draft, statements):
        earlier_blocks = [block for block in statements if block.start < steps[0].block.start]
        preamble.follow_cd(draft, earlier_blocks)
        if draft.folder == SUBMIT_DIR:  # the programs of a job start in the folder of the submission
            side_by_side.adopt_steps(draft, steps, statements)
            preamble.adopt_preamble(draft, earlier_blocks, steps[0].launch)
            return
    found_training = training.find_training(draft, statements)
    if found_training is None:
        lines = [line for block in statements for line in block.lines]
        draft.add([line for line in lines if line not in draft.outcomes], "lost", training.NO_TRAINING)
        if "ntasks" in draft.options:  # otherwise shape.py notes --ntasks
            draft.add((script.at_option("ntasks").line,), "understood", "options", "ntasks")
        return
    launch, statement = found_training
    earlier_blocks = [block for block in statements if block.start < statement.start]
    later_blocks = [block for block in statements if block.start > statement.start]
    preamble.follow_cd(draft, earlier_blocks)
    adopt_launch(draft, launch, simplified)
    training.adopt_same_statement(draft, statement, launch)
    training.adopt_after(draft, later_blocks)
    # Last, because lines before the launch may only stay if the launch or later lines use their variables.
    preamble.adopt_preamble(draft, earlier_blocks, launch)


def _drop_comments(draft: Draft) -> None:
    """Note comments, and the lines after a command such as `exit` that ends the script, as dropped."""
    body, lines = draft.script.body, draft.script.lines
    last_line = body.source.position(body.end)[0] if body.end < len(body.source.text) else len(lines)
    directive_lines = {
        directive.line for directive in draft.script.sbatch.directives if directive.kind in READ_KINDS
    }
    whole_comments = {line for line, _ in body.comments if lines[line - 1].lstrip().startswith("#")}
    comments = whole_comments - directive_lines
    for number, text in enumerate(body.source.text.split("\n"), start=1):
        if number in draft.outcomes or not lines[number - 1].strip():
            continue
        if number in comments or not text.strip():
            draft.add((number,), "dropped", "comment")
        elif number > last_line:
            draft.add((number,), "dropped", "after the end of the script")


def _with_files(draft: Draft, findings: Sequence[Finding], name: str, day: str) -> Adoption:
    """Return the adoption with its files and its rendered script, after comparing it with the old script."""
    _keep_unset_variables(draft)
    profile = documents.profile(draft, name, day)
    job = documents.job(draft, name)
    try:
        resolved = documents.resolved_job(job, profile, name)
        rerun = ("sbatchgen", "render", f"{name}.yaml")
        script = render(resolved, code=bundled("code"), rerun=rerun, folders=[bundled("templates")])
        new = replace(draft.script, file="job.slurm", text=script, makes_log_folders=True)
        proof.compare(draft, resolved, new)
        job_findings = check(resolved, log_folders_made=True)
        for finding in job_findings:
            if finding.severity == "error":
                draft.add((), "lost", f"render refuses the job: {finding.problem.what}")
        mended, remaining = proof.mended_and_remaining(draft, findings, [*lint(new), *job_findings])
    except SbatchgenError as error:
        for problem in error.problems:
            draft.add((), "lost", problem.what)
        return _without_files(draft, name)
    _note_differences(draft, resolved)
    adoption = _without_files(draft, name)
    return replace(adoption, mended=mended, remaining=remaining, job=job, profile=profile, rendered=script)


def _keep_unset_variables(draft: Draft) -> None:
    """Put variables into `env` that the old script leaves unset and a rendered script would set."""
    runtime = RUNTIMES[draft.profile.get("runtime", "host")]
    if runtime.finds_user_packages and not runtime.is_container:
        draft.env.setdefault("PYTHONNOUSERSITE", "")  # Python reads an empty value as unset
    is_torchrun = draft.job.get("launcher") == "torchrun" and draft.job["nproc_per_node"] > 1
    if is_torchrun and "OMP_NUM_THREADS" not in draft.script.assigned_names | {*draft.env}:
        draft.env["OMP_NUM_THREADS"] = "1"
        why = "else a process gets its share of the CPUs"
        draft.note(f"env sets OMP_NUM_THREADS to 1, as torchrun did: {why}")


def _note_differences(draft: Draft, resolved: ResolvedJob) -> None:
    """Note variables that the rendered script exports and the old script did not."""
    if "PYTHONNOUSERSITE" not in draft.env and resolved.runtime.finds_user_packages:
        draft.note("packages in ~/.local are not found: env: {PYTHONNOUSERSITE: ''} finds them")
    threads = exports.variables(resolved).get("OMP_NUM_THREADS")
    if threads and "OMP_NUM_THREADS" not in {*draft.script.assigned_names, *draft.env}:
        difference = f"OMP_NUM_THREADS is {threads} here, and was not set"
        draft.note(f"{difference}: env: {{OMP_NUM_THREADS: N}} sets another number")


def _without_files(draft: Draft, name: str) -> Adoption:
    """Return an adoption without files, with an outcome for each line.

    A line for which no outcome was noted is lost.
    """
    numbers = [number for number, text in enumerate(draft.script.lines, start=1) if text.strip()]
    for number in numbers:
        if number not in draft.outcomes:
            # `simplify` has moved a prefix of the launch from this line into the profile. Only \ is left.
            held_prefix = draft.script.lines[number - 1].strip() == "\\"
            if held_prefix:
                draft.add((number,), "kept", "bash")
            else:
                draft.add((number,), "lost", "no key of a job expresses it")
    scheduler = draft.script.other_scheduler
    return Adoption(
        script=draft.script.file,
        scheduler=scheduler.name if scheduler else "",
        name=name,
        remarks=sorted(draft.remarks, key=lambda remark: remark.lines[0] if remark.lines else 0),
        lines={number: draft.outcomes[number] for number in numbers},
        notes=draft.notes,
    )
