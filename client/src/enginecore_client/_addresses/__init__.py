"""Where engines are: addresses, where they come from, how they are followed."""
