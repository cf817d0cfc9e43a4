"""What a client decides, without sockets, threads or clocks."""
