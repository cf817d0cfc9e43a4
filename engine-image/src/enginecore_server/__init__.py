"""The engine server: PID 1 of an EngineCore pod, owner of its exposed sockets.

What belongs here: all that stands between clients and one engine process: its start, checks of
messages, sessions, liveness, drain, HTTP. What may not come here: anything that computes tokens
(no tensor library), and the Kubernetes API.
"""
