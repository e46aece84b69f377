"""Word errors: counts, normalisation, intervals; rates over people, noised."""
