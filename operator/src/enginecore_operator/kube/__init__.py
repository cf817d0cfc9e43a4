"""The only place that talks to the API server: requests, errors, cache, Lease, Events."""
