"""kopf handlers: they only hand what the watches tell to the cache."""
