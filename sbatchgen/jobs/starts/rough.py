"""`sbatch --test-only`: whether Slurm accepts a job, and a rough bound of its start, which ignores holes.

It lets running jobs end at their limits and adds those that wait, whatever the time limit of the job. The
controller holds its write lock for that, up to 2 s: it is asked seldom, and not again once it was slow.
"""

from collections.abc import Mapping, Sequence

from sbatchgen.base.errors import SlurmError
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.queue import new_key, private_script
from sbatchgen.jobs.slurm.refusal import Answer, OptionSource, Refusal, understand

TEST_TIMEOUT_S = 60.0


def ask_slurm(
    script: bytes,
    name: str,
    options: Sequence[str],
    asked: Mapping[str, OptionSource],
    environment: Mapping[str, str],
    *,
    timeout: float | None = None,
) -> Answer:
    """Ask the live Slurm about a job: `sbatch --test-only`, which uses up a job id."""
    env, _ = client.submit_environment(environment)
    try:
        with private_script(script, name, new_key()) as file:
            words = ["sbatch", "--test-only", *options, str(file)]
            limit_s = client.patience_s(env, timeout or TEST_TIMEOUT_S)
            answer = client.run(words, env, timeout=limit_s, elsewhere=client.FOR_SUBMISSIONS, for_job=True)
        if answer.status is None:
            raise answer.error
    except SlurmError as error:
        problem = error.problems[0]
        return Answer(accepted=False, says="", refusals=(Refusal(says=problem.what, fix=problem.fix),))
    return understand(answer.status, answer.err or answer.out, asked)
