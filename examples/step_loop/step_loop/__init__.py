"""A decode loop in miniature, twice: as such loops are first written, and without a wait for the device."""
