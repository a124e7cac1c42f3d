"""An inference engine in miniature whose weights a trainer replaces over HTTP: pause, update, resume."""
