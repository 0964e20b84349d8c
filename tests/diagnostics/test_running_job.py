"""What is said of a job whose coordination service does not answer."""

from __future__ import annotations

import os

import pytest
from captured import Patch

from slurm_resolver.coordination.secret import VARIABLE
from slurm_resolver.coordination.wire import NO_ANSWER
from slurm_resolver.diagnostics import running_job
from slurm_resolver.diagnostics.running_job import ask_service, explain_silence
from slurm_resolver.errors import RendezvousError
from slurm_resolver.slurm import scontrol

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


ENVIRONMENTS = {
    "the job's": (f"SLURM_JOB_ID=4\0{VARIABLE}=its own=one\0", "its own=one"),
    "another job's": (f"SLURM_JOB_ID=5\0{VARIABLE}=another\0", ""),
    "a shell's on the node": (f"HOME=/\0{VARIABLE}=another\0", ""),
    "unreadable": ("", ""),
}


@pytest.mark.parametrize(("environ", "secret"), ENVIRONMENTS.values(), ids=list(ENVIRONMENTS))
def test_only_the_secret_of_the_job_is_taken(environ: str, secret: str, monkeypatch: Patch) -> None:
    fields = {"JobId": "4", "JobState": "RUNNING"}
    monkeypatch.setenv(VARIABLE, "")  # so that the test's end removes what is set
    del os.environ[VARIABLE]
    monkeypatch.setattr(scontrol, "show_job", lambda job: fields)
    monkeypatch.setattr(running_job, "_find_addresses", lambda *_: ())
    monkeypatch.setattr(running_job, "read_proc", lambda path: environ)
    with pytest.raises(RendezvousError):
        ask_service("4", "", None)
    assert os.environ.get(VARIABLE, "") == secret
