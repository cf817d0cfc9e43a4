"""The torch engine: an EngineCore that runs on any machine.

What belongs here: computing tokens, and the process that speaks vLLM's native protocol to whoever
launched it. What may not come here: clients, sessions and control messages, which are the engine
server's. What is scheduled is decided without torch.
"""
