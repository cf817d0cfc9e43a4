"""ZMQ's sockets: towards engine servers, for engines that dial in, for the coordinator."""
