"""What the messages in the log of a failed run mean, and which task failed first."""
