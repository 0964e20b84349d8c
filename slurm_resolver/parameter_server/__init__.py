"""When parameter servers may leave: who is still there, and how the job has ended."""
