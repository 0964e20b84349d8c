"""The tasks of a step tell each other what no variable tells: over TCP, or by Slurm's PMI-2.

A rendezvous is a place where all tasks of a step meet: one of them listens, at an address that each
task can compute alone. Every task sends a note there. When all notes have arrived, or the time is
up, all tasks get the same answer. So the tasks find out together what none of them knows alone.
"""
