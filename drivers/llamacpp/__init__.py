"""llama.cpp: language models in GGUF, by llama-cpp-python."""
