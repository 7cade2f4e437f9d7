"""What ``edgeserve tune`` is made of: candidates, the worlds that try them, the search, the verdict, the rewritten
file."""
