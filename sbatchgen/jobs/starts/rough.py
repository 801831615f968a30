"""Asks `sbatch --test-only` whether Slurm accepts a job, and for a rough bound of its start.

The bound ignores holes: Slurm assumes that running jobs end at their limits and that waiting jobs start
first, even if the job is short. The controller holds its write lock for up to 2 s while it computes the
bound, so it is asked seldom, and not again after a slow answer.
"""

from collections.abc import Mapping, Sequence

from sbatchgen.base.errors import SlurmError
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.queue import new_key, private_script
from sbatchgen.jobs.slurm.refusal import Answer, OptionSource, Refusal, read_test_answer

TEST_TIMEOUT_S = 60.0  # how long to wait for the answer


def ask_slurm(
    script: bytes,
    name: str,
    options: Sequence[str],
    option_sources: Mapping[str, OptionSource],
    environment: Mapping[str, str],
    *,
    timeout: float | None = None,
) -> Answer:
    """Return the answer of `sbatch --test-only` for a script, which uses up a job id.

    `name` is the script's name, `options` are further options of sbatch, and `option_sources` has all options
    of the job. If sbatch can't answer, the answer is a refusal with the reason.
    """
    env, _ = client.submit_environment(environment)
    try:
        with private_script(script, name, new_key()) as file:
            words = ["sbatch", "--test-only", *options, str(file)]
            limit_s = client.query_limit_s(env, timeout or TEST_TIMEOUT_S)
            answer = client.run(
                words, env, timeout=limit_s, fix_if_missing=client.FIX_FOR_SUBMISSIONS, for_job=True
            )
        if answer.status is None:
            raise answer.error
    except SlurmError as error:
        problem = error.problems[0]
        return Answer(accepted=False, says="", refusals=(Refusal(says=problem.what, fix=problem.fix),))
    return read_test_answer(answer.status, answer.err or answer.out, option_sources)
