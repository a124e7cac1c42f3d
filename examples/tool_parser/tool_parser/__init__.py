"""A streaming parser in miniature for what a language model says: reasoning, text and tool calls."""
