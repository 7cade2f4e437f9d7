"""The ``torch`` engine. ``programs`` reads a model (a module, a ``torch.export`` program, a TorchScript file) and says
what it takes; ``engine`` runs it; ``streams`` runs it on CUDA, behind a lane's other batches."""
