"""The operator: reconciles EngineCluster and EngineCore resources into pods."""
