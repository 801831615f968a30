"""Asks `sbatch --test-only` whether Slurm would accept a job, and roughly when the job would start.

The start is later than the job may need to wait. Slurm assumes that running jobs end at their time limits,
and that waiting jobs start first, even if the job is short enough to start in a hole before them.

The controller holds its write lock for up to 2 s while it computes the start. So it is asked seldom, and not
again after a slow answer.
"""

from collections.abc import Mapping, Sequence

from sbatchgen.base.errors import SlurmError
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.queue import new_key, private_script
from sbatchgen.jobs.slurm.refusal import Answer, OptionSource, Refusal, read_test_answer

TEST_TIMEOUT_S = 60.0  # the default time limit for an answer


def ask_slurm(
    script: bytes,
    name: str,
    options: Sequence[str],
    option_sources: Mapping[str, OptionSource],
    environment: Mapping[str, str],
    *,
    timeout: float | None = None,
) -> Answer:
    """Return the answer of `sbatch --test-only` for a script. Slurm uses up a job id for each answer.

    Args:
        script: The script.
        name: The name of the script's file.
        options: Further options of sbatch.
        option_sources: All options of the job, for the explanation of a refusal.
        environment: The user's environment.
        timeout: The time limit in seconds; None for the default.

    Returns:
        The answer of sbatch. If sbatch does not answer, a refusal with the reason.
    """
    sbatch_environment, _ = client.submit_environment(environment)
    try:
        with private_script(script, name, new_key()) as file:
            answer = client.run(
                ["sbatch", "--test-only", *options, str(file)],
                sbatch_environment,
                timeout=client.query_limit_s(sbatch_environment, timeout or TEST_TIMEOUT_S),
                fix_if_missing=client.FIX_FOR_SUBMISSIONS,
                for_job=True,
            )
        if answer.status is None:
            raise answer.error
    except SlurmError as error:
        problem = error.problems[0]
        return Answer(accepted=False, says="", refusals=(Refusal(says=problem.what, fix=problem.fix),))
    return read_test_answer(answer.status, answer.err or answer.out, option_sources)
