"""What the owner sets beforehand."""
