"""Saves a training on a signal and resumes it at the next step: in Keras' fit or in a loop."""
