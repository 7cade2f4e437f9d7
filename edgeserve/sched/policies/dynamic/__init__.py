"""What the policies for models whose time depends on the input share: lengths as distributions, learnt online."""
