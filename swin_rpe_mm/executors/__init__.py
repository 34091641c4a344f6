"""What computes the plain model's numbers faster."""
