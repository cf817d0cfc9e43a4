"""The contract suite over the fake engine and the torch engine, with every client."""

from enginecore_client.testing.engines import FAKE_ENGINE
from enginecore_client.testing.suite import contract_tests
from support.contract_engines import torch_under_test

globals().update(contract_tests([FAKE_ENGINE, torch_under_test()]))
