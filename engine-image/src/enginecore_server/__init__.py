"""The engine server: PID 1 of an EngineCore pod, owner of its exposed sockets."""
