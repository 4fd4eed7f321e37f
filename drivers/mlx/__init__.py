"""Language models by MLX, on Apple's chips and wherever else it runs."""
