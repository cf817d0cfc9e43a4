"""The torch engine: an EngineCore that runs on any machine."""
