"""An offline inference engine in miniature that counts how many prompt tokens its prefix cache knew."""
