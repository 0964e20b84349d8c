"""The version of this package; setup.cfg reads it here as well."""

__version__ = "0.1.0"
