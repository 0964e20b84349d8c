"""What a log says about a failure, and what the workers of a running job do.

    start            one run of a job's tasks; a log may hold several of a requeued job
    known message    a message whose cause and remedy are in the table messages.ini
    finding          a known message in a log, with its first line and how often it comes
    failure          the error of a task, or its end in the words of srun
    follows          said of a failure that another task's failure has caused

`log_starts` finds the last start in a log, `message_search` finds the messages of one, and
`first_failure` the task that failed first. A log is read once, a line at a time; nothing in it can
make that slow. `log_lines` has the lines of this package that are read again. `running_job` asks a
job's coordination service.
"""
