"""RT-LM as published: priorities, consolidation and offloading of language models in static batches."""
