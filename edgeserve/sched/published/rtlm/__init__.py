"""RT-LM as published (Li et al., 2023): priorities, consolidation and offloading, in static batches."""
