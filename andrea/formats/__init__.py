"""Other programs' files of models: Hugging Face GPT-2, llm.c, GGUF, the ANDREA family's own."""
