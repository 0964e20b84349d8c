"""What is said of a job whose coordination service does not answer."""

from __future__ import annotations

import pytest

from slurm_resolver.coordination.wire import NO_ANSWER
from slurm_resolver.diagnostics.running_job import explain_silence

JOBS = {
    "PENDING JobHeldUser": " is PENDING (JobHeldUser); scontrol show job 4 says more",
    "CANCELLED None": " is CANCELLED; scontrol show job 4 says more",
    "SUSPENDED None": " is SUSPENDED; scontrol show job 4 says more",
    "RUNNING None": ": local rank 0 on n1 accepts connections, but does not answer: ",
}


@pytest.mark.parametrize("job", JOBS)
def test_why_no_service_of_a_job_answers(job: str) -> None:
    state, reason = job.split()
    fields = {"JobId": "4", "JobState": state, "Reason": reason}
    assert explain_silence(fields, {NO_ANSWER: "n1"}).startswith(f"job 4{JOBS[job]}")
