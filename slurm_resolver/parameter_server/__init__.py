"""Ends parameter servers when the tasks that train have ended: they would serve for ever."""
