"""What `submit` prints as JSON, as a type. preflight, resubmit, resume and sweep print the same."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TypedDict

from sbatchgen.base.errors import BudgetError
from sbatchgen.base.finding import Finding
from sbatchgen.jobs.budget.ledger import Standing
from sbatchgen.jobs.budget.spent import standings
from sbatchgen.jobs.review.node_share import Cost
from sbatchgen.jobs.review.review import Review
from sbatchgen.jobs.submit.sbatch import SubmittedRun


class _Submitted(TypedDict):
    job: str
    cluster: str
    run: str
    folder: str


class SubmitOutput(TypedDict):
    """What `submit` prints."""

    jobs: Sequence[_Submitted]  # empty with --dry-run
    digests: Sequence[str]  # the digests of the jobs or scripts on the command line, in their order
    cost: Sequence[Cost | None]
    findings: Sequence[Finding]  # an error among them prevents the submission of all jobs
    budgets: Sequence[Standing]  # what is left of each budget that applies


def submit_output(
    submitted: Sequence[SubmittedRun], reviews: Sequence[Review], environment: Mapping[str, str]
) -> SubmitOutput:
    """Return the output of `submit`: the jobs that Slurm has accepted, their reviews and the budgets.

    Raises BudgetError if a budget can't be read and no job was submitted.
    """
    budgets: list[Standing] = []
    # If jobs were submitted, they must be printed, even if the budgets can't be read.
    with contextlib.suppress(*(BudgetError,) * bool(submitted)):
        budgets = standings(environment)
    return {
        "jobs": [
            {
                "job": run.record.job,
                "cluster": run.record.cluster,
                "run": run.record.run,
                "folder": str(run.run_dir),
            }
            for run in submitted
        ],
        "digests": [review.digest for review in reviews],
        "cost": [review.cost for review in reviews],
        "findings": [finding for review in reviews for finding in review.findings],
        "budgets": budgets,
    }
