"""A job whose end is near: the signal that tells so, and the requeue."""
