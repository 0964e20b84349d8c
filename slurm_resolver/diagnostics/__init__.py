"""Known messages in logs, and bug reports."""
