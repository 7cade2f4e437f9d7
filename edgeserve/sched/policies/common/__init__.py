"""Code that several policies use: the queue of ready jobs, queues in arrival order, and the functions that make
bids."""
