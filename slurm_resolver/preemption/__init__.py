"""A job that is about to end: the signal that says so, and the requeue."""
