"""What a job does before its end: it watches for the signal, and is requeued."""
