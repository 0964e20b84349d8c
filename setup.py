"""All of the package's metadata stands in setup.cfg."""

from setuptools import setup

setup()
