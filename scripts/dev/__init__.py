"""Scripts for those who change the scheduler."""
