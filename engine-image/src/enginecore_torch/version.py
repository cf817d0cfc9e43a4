"""The version of this engine."""

from importlib.metadata import version

VERSION = version("enginecore-server")
