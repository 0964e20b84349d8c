"""What went wrong: known messages in logs, and what belongs in a bug report."""
