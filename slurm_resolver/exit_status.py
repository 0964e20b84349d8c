"""The exit statuses after a training was saved, which batch file and launchers read."""

REQUEUE_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again later
TERMINATED_STATUS = 143  # as a shell reports a process that SIGTERM has ended
MAX_RESTARTS_STATUS = 1  # the job may not be requeued once more
