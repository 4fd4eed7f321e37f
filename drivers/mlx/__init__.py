"""Language models by MLX, on Apple's chips and on other systems where MLX runs."""
