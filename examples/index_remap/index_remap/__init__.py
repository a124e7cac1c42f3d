"""From positions in a request to slots of a paged cache, packed row by row: with an atomic counter, and without one."""
