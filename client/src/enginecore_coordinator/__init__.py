"""The coordinator: collects the load of a cluster's engines and publishes it.

What belongs here: the book of loads (pure), the two sockets around it, its HTTP endpoints and
its command line. What may not come here: anything about one engine's requests.
"""
