"""The coordinator: collects the load of a cluster's engines and publishes it."""
