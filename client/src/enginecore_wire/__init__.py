"""The bytes on the wire: vLLM V1's messages and this project's control messages.

What belongs here: typed messages, their frames, tensors, the handshake, the checks that
follow from a message alone, and the names that the operator, the engine server and the
client share. What may not come here: sockets, event loops, threads, clocks, tensor libraries.
Standard library and msgspec only.
"""
