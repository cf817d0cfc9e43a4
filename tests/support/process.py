"""Child processes: the public package's, under the name tests know."""

from enginecore_client.testing._process import Process

__all__ = ["Process"]
