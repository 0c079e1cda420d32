"""What the tests share: adapters made on the spot, an engine in this process, a daemon in its own."""
