"""The tasks of a step meet.

A rendezvous is a place where all tasks of a step come together: one of them listens, at an address
that each can work out alone. Every task leaves a note there, and when all have come, or the time is
up, all get one answer. That is how they find out together what none of them knows alone.
"""
