"""The tasks of a step meet.

A rendezvous is a place and a time: all tasks of a step connect to one of them, at an address that
each of them can work out alone. Every task leaves a note there, and when all have come, or the time
is up, all get one answer. It is how tasks find out together what none of them knows alone.
"""
