"""What the policies of language models share: predicted lengths of answers, orders of priority, side lanes."""
