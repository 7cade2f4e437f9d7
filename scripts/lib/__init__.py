"""What several scripts use."""
