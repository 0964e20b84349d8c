"""One worker writes each file that several workers save.

All workers hold the same model and make the same calls, so that each of them would write the same
file. One of them writes it, and every worker finds it complete when the call returns.

`saving` is for what saves a model: the calls of the program, and callbacks such as ModelCheckpoint
that make these calls. `one_writer` is for callbacks of `fit` that write files of their own.
"""
