"""What a model is: its config, its weights as the file holds them, its tokenizer and its chat template."""
