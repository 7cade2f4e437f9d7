"""What the policies of ensembles share: the requests and their models, the local problem, its planner, and the bids."""
