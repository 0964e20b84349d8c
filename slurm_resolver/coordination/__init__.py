"""The tasks of a step meet once, and stay in touch until the last one leaves.

One task serves (see `service`); every task, that one too, holds one connection to it (`client`).
The room knows ranks and names, but no cluster.
"""
