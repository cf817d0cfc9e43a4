"""The contract suite of the engine and the clients that the command line names.

The plugin beside this file puts a class for each cell in here; without it there is nothing.
"""
